"""Start and stop the sandbox, inject faults, and report its state."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sparkwright import here
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import engine_socket
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from sparkwright.sandbox.faults import FAULTS, MEMBER_FAULTS
from sparkwright.trust import bounds, private
from sparkwright.units import format_gib
from sparkwright.visible import one_line

__all__ = ["FAULTS", "MEMBER_FAULTS", "default_folder", "down", "folder_of", "set_fault", "status", "up"]

START_TIMEOUT_S = 15.0
INHERITED_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
INHERITED_PREFIXES = ("PYTHON", "SPARKWRIGHT_")
FAULT_TIMEOUT_S = 5.0  # for the daemon to apply a fault
ENGINE_TIMEOUT_S = 3.0
MAX_SOCKET_PATH_BYTES = 100
#: subfolder of the sandbox that contains the folders of the linked hosts
HOSTS_FOLDER = "hosts"


def link_number(host: str) -> int:
    """Return a host's number on the fabric link, taken from the end of its name, or 0 if it has no link."""
    match = re.search(r"\d{1,2}$", host)
    return int(match[0]) if match else 0


def link_number_of(folder: Path) -> int:
    """Return the number of a simulated Spark on the fabric link, or 0 if it has no link."""
    return link_number(folder.name) if folder.parent.name == HOSTS_FOLDER else 0


def default_folder() -> Path:
    """Return the sandbox folder: SPARKWRIGHT_SANDBOX or, if unset, .sandbox in the project or in the current folder."""
    configured_folder = os.environ.get("SPARKWRIGHT_SANDBOX")
    if configured_folder:
        return Path(configured_folder)
    current_folder = here.project_folder()
    project = next(
        (folder for folder in (current_folder, *current_folder.parents) if (folder / "hosts").is_dir()), current_folder
    )
    return project / ".sandbox"


def folder_of(host: str) -> Path:
    """Return the folder of a host's simulated Spark.

    Hosts whose names end in a number are separate Sparks, linked to each other. All other hosts share one Spark.
    """
    return default_folder() / HOSTS_FOLDER / host if link_number(host) else default_folder()


def up(folder: Path) -> dict[str, str]:
    """Start the sandbox if it is not running, and return the environment variables for its clients. Raises Refused or Failed."""
    state = _read_state(folder)
    if state is not None and _is_running(folder):
        return dict(state["env"])
    folder = folder.resolve()
    if state is not None or not folder.exists():  # keep the mode of a folder that another user prepared
        private.create_folder(folder)  # private: its sockets start programs
    with (folder / "up.lock").open("w") as up_lock:  # so that simultaneous commands start a single daemon
        fcntl.flock(up_lock, fcntl.LOCK_EX)
        state = _read_state(folder)
        return dict(state["env"]) if state is not None and _is_running(folder) else _start(folder)


def _start(folder: Path) -> dict[str, str]:
    (folder / "state.json").unlink(missing_ok=True)
    _check_socket_path(folder)
    with (folder / "daemon.log").open("ab") as log:
        command = [sys.executable, "-P", "-m", "sparkwright.sandbox", "serve", str(folder)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_daemon_environment(), start_new_session=True
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        state = _read_state(folder)
        if state is not None and state["pid"] == process.pid:
            return dict(state["env"])
        time.sleep(0.02)
    if bounds.find_full_disk([folder]) is not None:
        raise Failed(f"the sandbox did not start: the disk of {folder} is full.", fix="Free some space.")
    raise Failed("the sandbox did not start.", fix=f"See {folder / 'daemon.log'}.")


def _daemon_environment() -> dict[str, str]:
    """Return the environment variables that the daemon inherits. It outlives the command, so they exclude the user's tokens."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED_VARIABLES or name.startswith(INHERITED_PREFIXES)
    }


def down(folder: Path) -> None:
    """Stop the sandbox, its linked hosts and their runs in progress, and remove its folder."""
    for state_file in folder.glob(f"{HOSTS_FOLDER}/*/state.json"):
        down(state_file.parent)
    _kill_run(folder)
    state = _read_state(folder)
    if state is not None and _is_running(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGTERM)
        deadline_s = time.monotonic() + 5
        while _is_running(folder) and time.monotonic() < deadline_s:
            time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _kill_run(folder: Path) -> None:
    """Kill the run that holds the simulated Spark's lock, because it would create the removed folder again."""
    owner, is_alive = lock.inspect(StateFolder.in_home(folder / "home"))
    if owner is not None and is_alive and owner.pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGKILL)


def set_fault(folder: Path, name: str | None) -> None:
    """Inject a fault, or clear it with None. Return once the daemon has applied the change."""
    path = folder / "fault"
    if name is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(name)
    fault_request = f"{name} {path.stat().st_mtime_ns}" if name else ""  # as returned by daemon.read_fault_request
    deadline_s = time.monotonic() + FAULT_TIMEOUT_S
    while _is_running(folder) and _applied_fault(folder) != fault_request and time.monotonic() < deadline_s:
        time.sleep(0.02)


def ran_out_of_memory(folder: Path) -> bool:
    """Return True if the simulated Spark is down because its memory was exhausted."""
    return (folder / "lost").exists()


def _applied_fault(folder: Path) -> str:
    """Return the last fault request that the daemon has applied, or an empty string."""
    try:
        return (folder / "applied").read_text()
    except FileNotFoundError:
        return ""


def status(folder: Path) -> dict[str, Any]:
    """Return the state of the simulated Spark for the user: containers, memory, fault, and running linked hosts."""
    linked_hosts = [
        path.parent.name for path in sorted(folder.glob(f"{HOSTS_FOLDER}/*/alive")) if _is_running(path.parent)
    ]
    hosts_row = {"hosts": f"up: {', '.join(linked_hosts)}"} if linked_hosts else {}
    state = _read_state(folder)
    if state is None or not _is_running(folder):
        return {"sandbox": "down", **hosts_row}
    containers = engine_socket.list_containers(state["env"]["DOCKER_HOST"], ENGINE_TIMEOUT_S)
    names = [f"{container['Names'][0][1:]} ({container['State']})" for container in containers]
    memory = dict(line.split(":") for line in (folder / "root/proc/meminfo").read_text().splitlines())
    available_bytes = int(memory["MemAvailable"].split()[0]) * 1024
    return {
        "sandbox": "up",
        "containers": ", ".join(names) or "none",
        "memory": f"{format_gib(available_bytes)} GiB available",
        "fault": (folder / "fault").read_text() if (folder / "fault").exists() else "nothing is broken",
        **hosts_row,
    }


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def _is_running(folder: Path) -> bool:
    """Return True if the daemon of this folder is running. It holds a lock on `alive` until it exits."""
    return private.is_locked(folder / "alive")


def _check_socket_path(folder: Path) -> None:
    """Raise Refused if the path of the sockets is too long for the kernel, or is not valid in Docker's URL of a socket."""
    if len(os.fsencode(folder / "docker.sock")) > MAX_SOCKET_PATH_BYTES:
        raise Refused(
            f"the path {folder} is too long for a unix socket.", fix="Set SPARKWRIGHT_SANDBOX to a shorter path."
        )
    if not str(folder).isprintable() or set("#?") & set(str(folder)):
        raise Refused(
            f"the path {one_line(str(folder))} contains #, ? or a control character.",
            fix="Set SPARKWRIGHT_SANDBOX to another folder.",
        )

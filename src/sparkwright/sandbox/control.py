"""Start, break and stop the sandbox."""

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
from sparkwright.errors import Failed
from sparkwright.host.containers import engine_socket
from sparkwright.sandbox.faults import FAULTS, MEMBER_FAULTS
from sparkwright.trust import bounds, private
from sparkwright.units import format_gib

__all__ = ["FAULTS", "MEMBER_FAULTS", "default_folder", "down", "folder_of", "set_fault", "status", "up"]

START_TIMEOUT_S = 15.0
INHERITED_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
INHERITED_PREFIXES = ("PYTHON", "SPARKWRIGHT_")
APPLY_TIMEOUT_S = 5.0
ENGINE_TIMEOUT_S = 3.0
#: subfolder of the sandbox for the hosts with a link
HOSTS_FOLDER = "hosts"


def link_number(host: str) -> int:
    """Return the number of a host on the link, taken from the end of its name; 0 without a link."""
    match = re.search(r"\d{1,2}$", host)
    return int(match[0]) if match else 0


def link_number_of(folder: Path) -> int:
    """Return the number on the link of a simulated Spark's folder."""
    return link_number(folder.name) if folder.parent.name == HOSTS_FOLDER else 0


def default_folder() -> Path:
    """Return the sandbox folder: SPARKWRIGHT_SANDBOX, or .sandbox of the project or of the current folder."""
    configured = os.environ.get("SPARKWRIGHT_SANDBOX")
    if configured:
        return Path(configured)
    current = here.project_folder()
    project = next((folder for folder in (current, *current.parents) if (folder / "hosts").is_dir()), current)
    return project / ".sandbox"


def folder_of(host: str) -> Path:
    """Return the folder of a host's simulated Spark.

    A host whose name ends in a number has a Spark of its own, linked to the others. All other names share the default one.
    """
    return default_folder() / HOSTS_FOLDER / host if link_number(host) else default_folder()


def up(folder: Path) -> dict[str, str]:
    """Start the sandbox unless it runs. Return the environment variables for the client. Raises Failed."""
    state = _read_state(folder)
    if state is not None and _is_running(folder):
        return dict(state["env"])
    folder = folder.resolve()
    if state is not None or not folder.exists():  # a folder prepared by another user keeps its mode
        private.create_folder(folder)  # its sockets start programs
    with (folder / "up.lock").open("w") as lock:  # two simultaneous commands start one sandbox
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = _read_state(folder)
        return dict(state["env"]) if state is not None and _is_running(folder) else _start(folder)


def _start(folder: Path) -> dict[str, str]:
    (folder / "state.json").unlink(missing_ok=True)
    _check_socket_path(folder)
    with (folder / "daemon.log").open("ab") as log:
        command = [sys.executable, "-P", "-m", "sparkwright.sandbox", "serve", str(folder)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_own_environment(), start_new_session=True
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        state = _read_state(folder)
        if state is not None and state["pid"] == process.pid:
            return dict(state["env"])
        time.sleep(0.02)
    if bounds.find_full_disk([folder]) is not None:
        raise Failed(f"the sandbox does not come up: the disk of {folder} is full.", fix="Free some space.")
    raise Failed("the sandbox does not come up.", fix=f"See {folder / 'daemon.log'}.")


def _own_environment() -> dict[str, str]:
    """Return the environment variables that the daemon inherits.

    The daemon outlives the command, so the user's tokens are left out.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED_VARIABLES or name.startswith(INHERITED_PREFIXES)
    }


def down(folder: Path) -> None:
    """Stop the sandbox and the simulated Sparks in it, and remove its folder."""
    for inner in folder.glob(f"{HOSTS_FOLDER}/*/state.json"):
        down(inner.parent)
    state = _read_state(folder)
    if state is not None and _is_running(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGTERM)
        deadline_s = time.monotonic() + 5
        while _is_running(folder) and time.monotonic() < deadline_s:
            time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def set_fault(folder: Path, name: str | None) -> None:
    """Inject one fault; None clears it."""
    path = folder / "fault"
    if name is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(name)
    order = f"{name} {path.stat().st_mtime_ns}" if name else ""
    deadline_s = time.monotonic() + APPLY_TIMEOUT_S
    while _is_running(folder) and _applied_fault(folder) != order and time.monotonic() < deadline_s:
        time.sleep(0.02)


def is_lost(folder: Path) -> bool:
    """Return True if this simulated Spark ran out of memory and has not been rebooted since."""
    return (folder / "lost").exists()


def _applied_fault(folder: Path) -> str:
    """Return the fault order that the daemon has applied, or an empty string."""
    try:
        return (folder / "applied").read_text()
    except FileNotFoundError:
        return ""


def status(folder: Path) -> dict[str, Any]:
    """Return the state of the simulated Spark: containers, available memory and the active fault."""
    state = _read_state(folder)
    if state is None or not _is_running(folder):
        return {"sandbox": "down"}
    containers = engine_socket.list_containers(state["env"]["DOCKER_HOST"], ENGINE_TIMEOUT_S)
    rows = [f"{row['Names'][0][1:]} ({row['State']})" for row in containers]
    memory = dict(line.split(":") for line in (folder / "root/proc/meminfo").read_text().splitlines())
    available = int(memory["MemAvailable"].split()[0]) * 1024
    active_fault = (folder / "fault").read_text() if (folder / "fault").exists() else "nothing is broken"
    summary = {
        "sandbox": "up",
        "containers": ", ".join(rows) or "none",
        "memory": f"{format_gib(available)} GiB available",
    }
    return {**summary, "fault": active_fault}


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def _is_running(folder: Path) -> bool:
    """Return True if this folder's daemon is running: it holds a lock while it does."""
    return private.is_locked(folder / "alive")


def _check_socket_path(folder: Path) -> None:
    """Raise Failed for a folder whose sockets would exceed the limit of about 100 characters."""
    if len(str(folder / "docker.sock")) > 100:
        raise Failed(f"the path {folder} is too long for a unix socket.", fix="Set SPARKWRIGHT_SANDBOX to a short one.")

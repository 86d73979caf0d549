"""Answer requests for the host's records and its lock, and perform the last step of `host.clean`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host.containers import compile_caches
from sparkwright.host.machine import Machine
from sparkwright.host.records import history, own_folders
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event
from sparkwright.trust import names, private

#: time within which the process of the previous step must exit after its recap
PROCESS_EXIT_TIMEOUT_S = 5.0


def read_history(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `history` event for each entry, newest first."""
    for row in history.read(state):
        yield {**row, **event("history"), "at": row.get("time", 0)}


def read_incident(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `file` event for each file of the newest or the requested bundle."""
    from sparkwright.host.records import incidents

    folders = incidents.list_server_bundles(state)
    folder = next((path for path in folders if request["run"] in ("", path.name)), None)
    if folder is None:
        run_id, location = request["run"], f"of {state.server}" if state.server else "on this host"
        problem = f"no incident {run_id} {location}" if run_id else f"no incidents {location}"
        fix = f"Available: {', '.join(path.name for path in folders)}." if folders else ""
        raise Refused(f"{problem}.", fix=fix) if run_id else SparkwrightError(f"{problem}.", fix=fix)
    for name, text in incidents.iter_files(folder, state.path / "runs" / folder.name):
        yield event("file", incident=folder.name, name=name, text=text)


def read_lock(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `lock` event with the owner (null if the lock is free), whether it is alive, and a description."""
    owner, is_alive = lock.inspect(state)
    interruption = journal.describe_interruption(state, owner) if owner is not None and not is_alive else ""
    yield event(
        "lock", owner=asdict(owner) if owner else None, alive=is_alive, text=f"{owner}" if is_alive else interruption
    )


def unlock(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Release the lock.

    In the request, `how` is stop (at the next safe point), kill (immediately) or forget (clear an interrupted owner).
    """
    owner, is_alive = lock.inspect(state)
    if owner is None:
        yield event("note", task="", text="the lock is free")
    elif not is_alive:
        lock.clear_owner(state)
        yield event("note", task="", text=f"lock cleared: {owner}")
    elif request["how"] == "stop":
        run_id = names.require_match(names.PATH_COMPONENT, owner.run, "the lock's run")
        private.touch(state.path / "runs" / run_id / "stop")
        yield event("note", task="", text=f"run {owner.run} will stop at the next safe point and release the lock")
    elif request["how"] == "kill" and owner.run == request["run"] and owner.pid > 1:
        if journal.is_running(state.path / "runs" / owner.run):
            os.kill(owner.pid, signal.SIGKILL)
        yield event("note", task="", text=f"run {owner.run} killed; the next deploy resumes")
    else:
        raise SparkwrightError(f"another run now holds the lock: {owner}.", fix="Check again.")


def clean(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Remove sparkwright's own folders, including the current runtime, as the last step of `host.clean`. Yields a `recap`.

    There is no run, because its journal would be among the removed files. In the request, `name` is the host's name for messages.
    Raises Refused during another run.
    """
    from sparkwright.host.models import model_folders

    started_s, host = time.monotonic(), request["name"]
    context = RunContext(machine, state, run_id="", emit=lambda row: None)
    owner = lock.LockOwner("host.clean", "host.clean", "", 0, time.time())
    with lock.acquire(state, owner, host=host):
        _wait_for_other_runs(state, host)
        kept_paths = [*own_folders.files_in_use(context), *compile_caches.folders_in_use(context)]
        # without its manifest, a later `host.clean --models` would not find a kept model
        kept_paths += [manifest.file for manifest in model_folders.removable_manifests(state)]
        own_folders.remove_all(machine.home, kept_paths)
    counts = {"ok": 1, "changed": 1, "failed": 0, "skipped": 0, "unreachable": 0}
    yield event("recap", host=host, **counts, exit=0, seconds=round(time.monotonic() - started_s, 3), msg="")


def _wait_for_other_runs(state: StateFolder, host: str) -> None:
    deadline_s = time.monotonic() + PROCESS_EXIT_TIMEOUT_S
    while running_folders := journal.list_running(state):
        if time.monotonic() > deadline_s:
            message = f"{host} is in use by run {running_folders[0].name}."
            raise Refused(message, fix=f"Follow it with `invoke attach --host {host}`, then clean again.")
        time.sleep(lock.POLL_S)

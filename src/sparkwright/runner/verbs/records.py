"""The records of the host, read without a run: its lock, its history, its incidents, and if it serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sparkwright.errors import SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.records import history
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event
from sparkwright.secret import Secret
from sparkwright.trust import names, private


def read_history(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `history` event for each act, newest first."""
    for row in history.read(state):
        yield {**row, **event("history"), "at": row.get("time", 0)}


def read_incident(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `file` event for each file of a bundle: the newest, or the requested one."""
    from sparkwright.host.records import incidents

    kept = incidents.of_server(state)
    folder = next((path for path in kept if request.get("run", "") in ("", path.name)), None)
    if folder is None:
        wanted, where = request.get("run"), f"of {state.server}" if state.server else "on this host"
        what = f"no incident {wanted} {where}" if wanted else f"no incidents {where}"
        raise SparkwrightError(f"{what}.", fix=f"Available: {', '.join(path.name for path in kept)}." if kept else "")
    for name, text in incidents.files(folder, state.path / "runs" / folder.name):
        yield event("file", incident=folder.name, name=name, text=text)


def read_serving(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `serving` event: serving, verified, why. name: of the container, if nothing was verified yet."""
    from sparkwright.modules.rpc.server_inspection import Serving

    secrets = {name: Secret(value) for name, value in request.get("secrets", {}).items()}
    context = RunContext(machine, state, run_id="", emit=lambda _: None, check=True, secrets=secrets)
    found = Serving().run(Serving.Args(name=request.get("name", "")), context)
    yield event("serving", **found.data)


def read_lock(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `lock` event: owner (null for none), alive, and the history of one that was cut off."""
    owner, alive = lock.inspect(state)
    reported = journal.story(state, owner) if owner is not None and not alive else ""
    yield event("lock", owner=asdict(owner) if owner else None, alive=alive, text=f"{owner}" if alive else reported)


def unlock(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Free the lock.

    how: stop (ask the run to stop at the next safe point), kill (now), forget (an owner that was cut off).
    """
    owner, alive = lock.inspect(state)
    if owner is None:
        yield event("note", task="", text="the lock is free")
    elif not alive:
        lock.forget(state)
        yield event("note", task="", text=f"lock cleared: {owner}")
    elif request.get("how") == "stop":
        private.touch(state.path / "runs" / names.matched(names.STEP, owner.run, "the lock's run") / "stop")
        yield event("note", task="", text=f"run {owner.run} will stop at the next safe point and release the lock")
    elif request.get("how") == "kill" and owner.run == request.get("run") and owner.pid > 1:
        if journal.lives(state.path / "runs" / owner.run):
            os.kill(owner.pid, signal.SIGKILL)
        yield event("note", task="", text=f"run {owner.run} killed; the next deploy resumes")
    else:
        raise SparkwrightError(f"another run now holds the lock: {owner}.", fix="Check again.")

"""Run a module in check mode without recording a run or taking a lock, so that it works during a run and on a full disk."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from sparkwright.host.machine import Machine
from sparkwright.host.records import server_keys
from sparkwright.host.runs.journal import ALIVE_INTERVAL_S
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import SCHEMA, Event, event
from sparkwright.protocol.plan import Plan, Task, new_run_id
from sparkwright.runner.play import PlayRun
from sparkwright.secret import Secret
from sparkwright.trust.redact import Redactor


def ask(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Run a module in check mode, and yield the events of a run.

    The keys of this host's servers are masked, as in a journal.
    """
    task = Task(request["module"], request["module"].replace("_", " "), request["module"], request["args"])
    plan = Plan(new_run_id(f"ask-{os.getpid()}"), "", task.name, (task,), check=True, exclusive=False)
    secrets = {name: Secret(value) for name, value in request["secrets"].items()}
    redactor = Redactor(server_keys.list_keys(state))
    fields = {"host": "", "play": plan.play, "playbook": "", "check": False, "who": "", "schema": SCHEMA}
    yield event("run_started", run=plan.run_id, **fields, sandbox=machine.sandbox)
    with contextlib.redirect_stdout(sys.stderr):  # standard output carries the answer
        for row in stream_events(lambda emit: emit(PlayRun(plan, machine, state, secrets, emit).run())):
            yield redactor.redact_event(row)


def stream_events(work: Callable[[Callable[[Event], None]], None]) -> Iterator[Event]:
    """Yield the events that a function emits in a thread as they arrive, and `alive` after every 2 s of silence."""
    events: SimpleQueue[Event | BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            work(events.put)
        except BaseException as error:
            events.put(error)
        events.put(None)

    threading.Thread(target=run, daemon=True).start()
    while True:
        try:
            row = events.get(timeout=ALIVE_INTERVAL_S)
        except Empty:
            row = event("alive")
        if row is None:
            return
        if isinstance(row, BaseException):
            raise row
        yield row

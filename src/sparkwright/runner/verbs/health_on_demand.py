"""A check on demand, as events: it keeps no run, so a laptop's cron never pushes a deploy out of the list."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.errors import Exit
from sparkwright.health.check import DOCKER_S
from sparkwright.health.judging.judge import EXITS
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs import journal
from sparkwright.host.runs.context import Engine, RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event
from sparkwright.protocol.plan import new_run_id
from sparkwright.runner.health_check import composed
from sparkwright.secret import Secret

TASK = "health"
CURES = {
    "restart": "Run `invoke restart`.",
    "power": "Cut its AC power for 60 s; nothing else helps.",
    "deploy": "`invoke plan` shows the differences, `invoke deploy` applies the recipe.",
    "person": "Run `invoke diagnose` and `invoke doctor`.",
}


def check(request: Mapping[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Answer the verb `health`: {"smoke": bool, "token_s": seconds}. One task, and a recap with the state's exit code."""
    answer: list[Event] = []
    settings = Settings.of(state)
    if request.get("token_s"):
        settings = dataclasses.replace(
            settings, limits=dataclasses.replace(settings.limits, token_s=float(request["token_s"]))
        )
    secrets = {name: Secret(value) for name, value in (request.get("secrets") or {}).items()}
    run_id = new_run_id("check")
    engine = Engine(machine, timeout_s=DOCKER_S)
    context = RunContext(machine, state, run_id, answer.append, secrets=secrets, task=TASK, engine=engine)
    yield event("task_started", task=TASK, name="Check the server's health", module=TASK, where="")
    started_s = time.monotonic()
    record = composed(context, settings, smoke=bool(request.get("smoke"))).run()
    yield from answer
    if interrupted := journal.interrupted(state):
        yield event("note", task=TASK, text=interrupted)
    yield from _reported(record, time.monotonic() - started_s)


def sentence(record: Record) -> str:
    """Return the finding of this check in one line, and the state of the scheduled checks if it differs."""
    so_far = f" (scheduled checks so far: {record.state})" if record.state != record.seen else ""
    return f"{record.seen}: {record.why}{so_far}"


def _reported(record: Record, seconds: float) -> Iterator[Event]:
    code = EXITS[record.seen]
    failed = code is not Exit.OK
    rows = [
        f"{evidence.level}: {evidence.check}: {evidence.message}"
        for evidence in record.evidence
        if evidence.level != "ok"
    ]
    data = {"evidence": rows, "record": record.to_json()}
    about: dict[str, Any] = {"task": TASK, "name": "Check the server's health", "module": TASK, "where": ""}
    fix = CURES.get(record.cure, "") if failed else ""
    about |= {"msg": sentence(record), "fix": fix, "diff": [], "data": data, "register": "", "registered": {}}
    status = "failed" if failed else "ok"
    yield event("task_finished", **about, status=status, exit=int(code), seconds=round(seconds, 3))
    counts = {"ok": int(not failed), "changed": 0, "failed": int(failed), "skipped": 0, "unreachable": 0}
    msg = f"{sentence(record)} {fix}".strip() if failed else ""
    yield event("recap", host="", **counts, exit=int(code), seconds=round(seconds, 3), msg=msg)

"""The commands about what a host remembers: its history, its incidents, who holds its lock."""

from __future__ import annotations

import sys
from typing import Any

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst
from sparkwright.console.out import say
from sparkwright.errors import Refused

HELP = {"host": "which host or hosts", "debug": "show the traceback of an error"}


@task(help={**HELP, "json": "one JSON object an act", "last": "how many, newest first"})
@reporting
def history(context: object, host: str = "", last: int = 20, json: bool = False, debug: bool = False) -> int:
    """Who changed a host's server, when, what differed, and the figures it was verified with."""
    from sparkwright.app.questions import host_records

    return worst(host_records.history(host, last, json=json))


@task(
    help={
        **HELP,
        "run": "the incident's run; the newest if not given",
        "to": "where to; incidents/HOST/RUN if not given",
        "json": "one object a host: its incident, the folder, the files",
    }
)
@reporting
def incident(
    context: object, host: str = "", run: str = "", to: str = "", json: bool = False, debug: bool = False
) -> int:
    """Fetch what was kept of a server that failed: log, inspect, memory, kernel lines, plan and events."""
    from sparkwright.app.questions import host_records

    return worst(host_records.incident(host, run, to, json=json))


@task(
    help={
        **HELP,
        "stop": "do not ask: its run stops at the next safe point",
        "kill": "do not ask: its run is killed now; the next deploy takes up from what it left",
    }
)
@reporting
def unlock(context: object, host: str = "", stop: bool = False, kill: bool = False, debug: bool = False) -> int:
    """Say who holds a host's lock, and ask what to do about it: wait, stop his run, or kill it."""
    from sparkwright.app.questions import host_records

    if stop and kill:
        raise Refused("give one of --stop and --kill.")
    answer = "stop" if stop else "kill" if kill else ""
    return worst([host_records.unlock(host, lambda told: answer or _asked(told))])


def _asked(told: dict[str, Any]) -> str:
    """What a person wants; nobody to ask is a refusal that says who holds it."""
    question = "[s]top it at the next safe point, [k]ill it, or [l]eave it? " if told["alive"] else "Forget it? [y/n] "
    say(told["text"])
    if not sys.stdin.isatty():
        words = "`--stop` or `--kill`" if told["alive"] else "`--stop`"
        raise Refused("nobody is there to ask.", fix=f"Say {words}.")
    try:
        answer = input(question).strip().lower()[:1]
    except (EOFError, KeyboardInterrupt):
        return ""
    return {"s": "stop", "k": "kill"}.get(answer, "") if told["alive"] else "forget" if answer == "y" else ""


TASKS = [history, incident, unlock]

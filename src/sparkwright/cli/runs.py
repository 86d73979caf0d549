"""The commands about runs on a host: follow one again, stop one, list them."""

from __future__ import annotations

from typing import Any

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst

HELP = {"host": "which host or hosts", "json": "JSON lines", "debug": "show the traceback of an error"}


@task(help={**HELP, "run": "the run's id; the newest if not given"})
@reporting
def attach(context: object, host: str = "", run: str = "", json: bool = False, debug: bool = False) -> int:
    """Follow a run again, from its first event: after a lost connection, or from another laptop."""
    return _ask(host, {"verb": "attach", "run": run}, json=json)


@task(help={**HELP, "run": "the run's id; the newest if not given"})
@reporting
def stop(context: object, host: str = "", run: str = "", json: bool = False, debug: bool = False) -> int:
    """Ask a run to stop at the next safe point; what it had taken away is put back."""
    return _ask(host, {"verb": "stop", "run": run}, json=json)


@task(help=HELP)
@reporting
def runs(context: object, host: str = "", json: bool = False, debug: bool = False) -> int:
    """List the runs a host remembers, newest first."""
    return _ask(host, {"verb": "runs"}, json=json)


def _ask(pattern: str, header: dict[str, Any], *, json: bool) -> int:
    from sparkwright.app import session
    from sparkwright.app.connect import choose

    return worst(session.ask(choose(pattern), header, json=json))


TASKS = [attach, stop, runs]

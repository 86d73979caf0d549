"""The command `logs`: what an engine's log says, or the log itself, of hosts or of a saved file."""

from __future__ import annotations

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst
from sparkwright.errors import Exit, Refused

TAIL_LINES = 1000


@task(
    help={
        "host": "whose log: spark1, spark1,spark2, a group, all",
        "file": "a saved log, instead of a host's",
        "state": "what the engine says of itself: each value, or unknown, and the line that says it",
        "tail": f"without --state: how many lines from the end (default {TAIL_LINES})",
        "json": "one object a host: version, chunked_prefill ... ready, died, evidence; null is unknown",
        "debug": "show the traceback of an error",
    }
)
@reporting
def logs(
    context: object,
    host: str = "",
    file: str = "",
    state: bool = False,
    tail: int = TAIL_LINES,
    json: bool = False,
    debug: bool = False,
) -> int:
    """Print the log of the running engine, or with --state what it says of itself. Only its last start counts.

    Ends with 0: the log tells of a start (or, without --state, is printed); 1: the engine died; 3: a host is unreachable;
    4: there is no container, or no start of an engine in its log, so nothing is known; 5: no such file, host or recipe.
    """
    if bool(host) == bool(file):
        raise Refused("say whose log: --host NAME or --file PATH.")
    from sparkwright.app.questions import log_reading

    found = log_reading.of_file(file, tail) if file else log_reading.of_hosts(host, tail)
    for one in found:
        log_reading.show(one, state=state, json=json, titled=len(found) > 1)
    return worst([one.exit if state or one.error else Exit.OK for one in found])


TASKS = [logs]

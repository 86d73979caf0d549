"""The command `doctor`: what a host should be like before it serves."""

from __future__ import annotations

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst
from sparkwright.app.prompts import agreed


@task(
    help={
        "host": "which hosts: spark1, a group, all",
        "fix": "do the safe ones of the fixes: they are shown first, and asked for",
        "yes": "with --fix: do not ask",
        "json": "one object a host: findings (check, verdict, evidence, fix, source), mended, bad",
        "debug": "show the traceback of an error",
    }
)
@reporting
def doctor(
    context: object, host: str = "", fix: bool = False, yes: bool = False, json: bool = False, debug: bool = False
) -> int:
    """What is wrong with a host, and the one command that mends it: release, driver, Docker, names, memory, disk, clock.

    Ends with 0: nothing is bad (warnings and unknowns are said); 1: something is bad, or a fix failed; 3: a host is
    unreachable. It never upgrades a package.
    """
    from sparkwright.app.questions import host_checks

    return worst(host_checks.run(host, fix=fix, agreed=lambda: agreed("Do these?", yes=yes), json=json))


TASKS = [doctor]

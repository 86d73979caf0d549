"""The commands that find problems: `diagnose` for a server and `doctor` for a host."""

from __future__ import annotations

from sparkwright import defaults
from sparkwright.app.prompts import confirm
from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit


@command(
    help={
        "token-s": f"time limit for a token, in seconds (default: the limit of the health checks, or {defaults.TOKEN_TIMEOUT_S})",
        "json": "one JSON object per host: state, summary, exit, causes, tok_per_s (docs/diagnose.md)",
    }
)
def diagnose(host: str = "", recipe: str = "", token_s: float = 0.0, json: bool = False) -> list[int]:
    """Find out why a server is down or slow.

    Prints a summary, then each cause with its evidence and fix. Changes nothing, and needs no spark.lock, registry or earlier
    run. Exit code: 0 no problem was found; 1 a problem was found; 3 a host is unreachable; 4 unknown, because the server is
    starting, others use it, or there is no baseline.
    """
    from sparkwright.app.connect import restrict_to_recipe
    from sparkwright.app.queries import diagnosis

    return diagnosis.run(restrict_to_recipe(host, recipe), token_timeout_s=token_s, json=json)


@command(
    help={
        "fix": "show the safe fixes, and apply them after confirmation",
        "yes": "with --fix: do not ask for confirmation",
        "json": "one JSON object per host: findings (check, verdict, evidence, fix ...), fixed, not_fixed, bad, budget",
    }
)
def doctor(host: str = "", fix: bool = False, yes: bool = False, json: bool = False) -> list[Exit]:
    """Check a host's setup, with a fix for each problem.

    Checks release, driver, Docker, name resolution, memory, disk and clock. Packages are never upgraded. Exit code: 0 no check
    failed (warnings and unknowns are shown); 1 a check or a fix failed; 3 a host is unreachable.
    """
    from sparkwright.app.queries import host_checks

    return host_checks.run(host, fix=fix, confirm=lambda: confirm("Apply these fixes?", yes=yes), json=json)


TASKS = {"": [diagnose, doctor]}

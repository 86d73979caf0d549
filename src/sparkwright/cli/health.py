"""The commands about a host's health: check it now, have it checked by its own clock."""

from __future__ import annotations

from typing import Any

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright.cli.reporting import reporting, worst

HELP = {"host": "which host or hosts", "json": "events as JSON lines", "debug": "show the traceback of an error"}


@task(
    default=True,
    help={
        **HELP,
        "smoke": "measure the decode rate too (10 to 30 s of an idle server)",
        "token-s": "how long a token may take, seconds; 0: as installed, or 30",
    },
)
@reporting
def check(
    context: object, host: str = "", smoke: bool = False, token_s: float = 0.0, json: bool = False, debug: bool = False
) -> int:
    """Check the server's health now: 0 ok or starting, 2 degraded, 1 down or worse, 3 unreachable, 4 unknown."""
    from sparkwright.cli import session
    from sparkwright.cli.hosts import choose

    chosen = choose(host)
    for member in chosen.fleet.members:
        member.secrets = chosen.inventory.secrets(member.host)
    return worst(session.ask(chosen, {"verb": "health", "smoke": smoke, "token_s": token_s}, json=json))


def health_collection() -> Collection:
    """`invoke health`, `invoke health.install`, `invoke health.uninstall`."""
    return Collection(check)

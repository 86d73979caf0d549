"""The commands about the compile caches on hosts: `caches.list` and `caches.prune`."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit


@command(
    name="list", help={"json": "one JSON object a host: its compile caches, and why each stays (empty: it may go)"}
)
def list_caches(host: str = "", json: bool = False) -> list[Exit]:
    """List a host's compile caches, and why each stays.

    They hold what an engine compiled at its start, for the next start of the same image, model and arguments.
    """
    from sparkwright.app.connect import machines, reach

    selection = machines(reach(host))
    from sparkwright.app.stores import caches

    return caches.show(selection, json=json)


@command(
    help={
        "check": "only show; exit code 2 when something would be removed",
        "yes": "do not ask",
        "json": "one JSON object a host: its compile caches, and what was freed (null: nothing was removed)",
    }
)
def prune(host: str = "", check: bool = False, yes: bool = False, json: bool = False) -> list[Exit]:
    """Remove a host's unused compile caches, after asking.

    Kept are those of its containers, of the last verified state, and of the one that a rollback goes to. The next
    start of what they were for compiles anew.
    """
    from sparkwright.app.connect import machines, reach

    selection = machines(reach(host))
    from sparkwright.app.stores import caches

    return caches.prune(selection, check=check, yes=yes, json=json)


TASKS = {"caches": [list_caches, prune]}

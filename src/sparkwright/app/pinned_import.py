"""Pinning of an imported recipe: a host asks the registry and the hub about it, and spark.lock keeps the answers."""

from __future__ import annotations

from sparkwright.app.connect import machines, reach
from sparkwright.app.stores import lock_update
from sparkwright.console import words
from sparkwright.errors import Refused
from sparkwright.fleet.member import hang_up
from sparkwright.project import recipe
from sparkwright.project.importing.recipe_of import Taken
from sparkwright.project.importing.report import Row


def tell(taken: Taken, host: str) -> None:
    """Pin the image and the model, and add the outcome to the import's report.

    An entry that could not be asked for is not pinned; the report has the reason.

    Args:
        host: the host that asks.

    Raises:
        Refused: the pattern does not match exactly one host.
    """
    selection = machines(reach(host))
    if len(selection.hosts) != 1:
        hang_up(selection.fleet.members)
        raise Refused(f"--host must name one host to ask, got {len(selection.hosts)}.")
    wanted = recipe.load(selection.project.root, taken.name)
    found = lock_update.pinned_of(selection, selection.fleet.members[0], wanted)
    lock_update.ask_upstream(selection, [pinned for pinned in found if not pinned.complete], follow=True)
    lock_update.write([pinned for pinned in found if pinned.new is not None])
    keys = {f"{pinned.kind} {pinned.key}" for pinned in found}
    before = [row for row in taken.report.rows if row.what not in keys]
    taken.report.rows = before + [row for pinned in found for row in _rows(pinned, taken)]


def _lock_name(entry: lock_update.Pinned) -> str:
    return "the sandbox's own lock, not in spark.lock" if entry.member.host.connection == "sandbox" else "spark.lock"


def _rows(entry: lock_update.Pinned, taken: Taken) -> list[Row]:
    if entry.error is not None:
        fix = "`invoke lock` of a host that serves it tries again"
        return [Row("note", f"{entry.kind} {entry.key}", f"not pinned: {entry.error} {fix}")]
    how = "as before" if entry.new is None or entry.state == "same" else entry.sentence().removeprefix("new: ")
    pinned = Row("kept", f"{entry.kind} {entry.key}", f"pinned in {_lock_name(entry)}: {how}")
    digest = (entry.new or entry.old or {}).get("digest", "")
    if entry.kind == "model" or taken.image_digest in ("", digest):
        return [pinned]
    moved = f"the source pins {words.short(taken.image_digest)}; the tag means {words.short(digest)} now"
    return [pinned, Row("note", f"image {entry.key}", moved)]

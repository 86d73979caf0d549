"""The `images.prune` and `images.copy` commands: remove images from hosts after confirmation, or copy them between hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, choose
from sparkwright.app.plans.pins import lock_of
from sparkwright.app.prompts import agreed
from sparkwright.app.questions.one_module import ask_module, in_turn
from sparkwright.app.runs.presenters import Shown
from sparkwright.app.stores import image_copy
from sparkwright.console import grid, plain_table
from sparkwright.console.out import say, say_json
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.protocol.container import locked_ids
from sparkwright.trust import image_name

COLUMNS = grid.columns(("HOST", 0), ("STATE", 0), ("FREES", 1), ("IMAGE", 0), ("WHY", 0))


def prune(selection: Selection, *, everything: bool, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Show the unused images of each host, ask, and remove them.

    Args:
        everything: images of all repositories.
        check: only show them.
    """
    given = {"everything": everything, "check": check, "yes": yes, "json": json}
    return in_turn(selection, lambda member: _prune(selection, member, **given), json=json)


def _prune(selection: Selection, member: Member, *, everything: bool, check: bool, yes: bool, json: bool) -> Exit:
    args = _prune_args(selection, member, everything=everything)
    found = ask_module(selection.fleet, member, "prune_images", args, check=True)
    going = [row for row in found["images"] if not row["kept"]]
    if not json:
        _show(member.host.name, found)
    freed = None
    if going and not check and agreed(f"Remove these from {member.host.name}?", yes=yes):
        only = {**args, "only": [row["id"] for row in going]}
        freed = ask_module(selection.fleet, member, "prune_images", only, exclusive=True)["freed_bytes"]
    if json:
        say_json({"host": member.host.name, "images": found["images"], "freed_bytes": freed})
    elif freed is not None:
        say(f"{member.host.name}: {units.size(freed)} freed.")
    return Exit.CHANGES if going and freed is None else Exit.OK


def _prune_args(selection: Selection, member: Member, *, everything: bool) -> dict[str, Any]:
    """Return the repositories that recipes and lock name, and the lock's pins of any host, whose images are kept."""
    root: Path = selection.project.root
    lock = lock_of(selection.project, member.host)
    refs = {recipe.load(root, name).image for name in recipe.names(root)} | set(lock.images)
    pinned = {image_name.pinned(ref, entry["digest"]): list(locked_ids(entry)) for ref, entry in lock.images.items()}
    repositories = set() if everything else {image_name.Name.parse(ref).repository for ref in refs}
    return {"repositories": sorted(repositories), "pinned": pinned}


def _show(host: str, found: dict[str, Any]) -> None:
    """Print the images to keep and the images to remove."""
    going = any(not row["kept"] for row in found["images"])
    names = [row["names"][0] if row["names"] else row["id"][7:19] for row in found["images"]]
    rows = [
        (host, "keep" if row["kept"] else "free", units.size(row["frees_bytes"]), name, row["kept"])
        for row, name in zip(found["images"], names, strict=True)
    ]
    plain_table.show(COLUMNS, rows)
    say(f"{host}: would free {units.size(found['freed_bytes'])}." if going else f"{host}: nothing to free.")


def copy(source_name: str, to: str, image: str, *, json: bool) -> list[Exit]:
    """Copy an image from one host to others, over ssh.

    Args:
        image: empty for the image of the receiving host's recipe.
    """
    selection = choose(f"{source_name},{to}")
    sources = selection.inventory.machines_of(selection.inventory.match(source_name))
    if len(sources) != 1:
        raise Refused(f"--from {source_name} names {len(sources)} hosts.", fix="Name one.")
    local = [host.name for host in selection.hosts if host.connection != "ssh"]
    if local:
        raise Refused(f"{', '.join(local)}: only hosts over ssh send and take images.")
    source = next(member for member in selection.fleet.members if member.host.machine == sources[0].name)
    targets = [member for member in selection.fleet.members if member.host.machine != sources[0].name]
    if not targets:
        raise Refused(f"--to {to} names no other host than {source_name}.")
    selection.fleet.connect()
    return _copy(selection, source, targets, image, json=json)


def _copy(selection: Selection, source: Member, targets: list[Member], image: str, *, json: bool) -> list[Exit]:
    Shown(selection, json=json, diff=False)
    sentences, codes = list[str](), list[Exit]()

    def copy_to(member: Member) -> None:
        try:
            sentences.append(image_copy.copy(selection, selection.fleet, source, member, image))
        except SparkwrightError as error:
            name = member.host.name
            error.where = error.where or name
            sentences.append(str(error) if error.where == name else f"{name}: {error}")
            codes.append(error.exit)

    try:
        for member in targets:  # in sequence, as they would share the source's network and its Docker Engine
            selection.fleet.each([member], copy_to)
    finally:
        selection.fleet.close()
    for sentence in sentences:
        say(sentence, file=sys.stderr if json else sys.stdout)
    return codes

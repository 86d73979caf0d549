"""`invoke images.prune` and `invoke images.copy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright import units
from sparkwright.app.outcome import reporting, worst
from sparkwright.app.prompts import agreed
from sparkwright.console.out import say, say_error, say_json
from sparkwright.errors import Exit, SparkwrightError


@task(
    help={
        "host": "which hosts",
        "all": "images of every repository; else only of those that the recipes name",
        "check": "show only: exit 2 when something would go",
        "yes": "do not ask",
        "json": "one object a host: its images, and what was freed (null: nothing was removed)",
        "debug": "show the traceback of an error",
    }
)
@reporting
def prune(
    context: object,
    host: str = "",
    all: bool = False,
    check: bool = False,
    yes: bool = False,
    json: bool = False,
    debug: bool = False,
) -> int:
    """Show which images of a host nothing needs and what removing them frees, ask, and remove them."""

    from sparkwright.app.connect import reach
    from sparkwright.app.questions.one_module import ask_module
    from sparkwright.fleet.fleet import hang_up

    chosen = reach(host)
    codes: list[int] = []
    try:
        for member in chosen.fleet.members:
            try:
                args = _prune_args(chosen, member, everything=all)
                found = ask_module(chosen.fleet, member, "prune_images", args, check=True)
                going = [row for row in found["images"] if not row["kept"]]
                if not json:
                    _show(member.host.name, found)
                freed = None
                if going and not check and agreed(f"Remove these from {member.host.name}?", yes=yes):
                    only = {**args, "only": [row["id"] for row in going]}
                    freed = ask_module(chosen.fleet, member, "prune_images", only, exclusive=True)["freed_bytes"]
                codes.append(int(Exit.CHANGES if going and freed is None else Exit.OK))
                if json:
                    say_json({"host": member.host.name, "images": found["images"], "freed_bytes": freed})
                elif freed is not None:
                    say(f"{member.host.name}: {units.size(freed)} freed.")
            except SparkwrightError as error:
                error.where = error.where or member.host.name
                say_error(error, json=json, host=member.host.name)
                codes.append(int(error.exit))
    finally:
        hang_up(chosen.fleet.members)
    return int(worst(codes))


@task(
    help={
        "from_": "the host that has the image",
        "to": "which hosts get it",
        "image": "repository:tag; what the recipe of the receiving host names if not given",
        "json": "events as JSON lines",
        "debug": "show the traceback of an error",
    }
)
@reporting
def copy(
    context: object, from_: str = "", to: str = "", image: str = "", json: bool = False, debug: bool = False
) -> int:
    """Copy an image from host to host: one compressed ssh stream, compared at the end. No registry is asked."""
    from sparkwright.app.connect import choose
    from sparkwright.errors import Refused

    if not from_ or not to:
        raise Refused("say --from HOST and --to HOSTS.")
    chosen = choose(f"{from_},{to}")
    sources = chosen.inventory.match(from_)
    if len(sources) != 1:
        raise Refused(f"--from {from_} names {len(sources)} hosts.", fix="Name one.")
    local = [one.name for one in chosen.hosts if one.connection != "ssh"]
    if local:
        raise Refused(f"{', '.join(local)}: only hosts over ssh send and take images.")
    chosen.fleet.connect()
    from sparkwright.app.presenters import Shown
    from sparkwright.app.stores import image_copy

    Shown(chosen, json=json, diff=False)
    source = next(one for one in chosen.fleet.members if one.host.name == sources[0].name)
    said: dict[str, str] = {}
    codes: list[int] = []

    def one(member: Any) -> None:
        try:
            said[member.host.name] = image_copy.copy(chosen, chosen.fleet, source, member, image)
        except SparkwrightError as error:
            error.where = error.where or member.host.name
            said[member.host.name] = str(error)
            codes.append(int(error.exit))

    targets = [member for member in chosen.fleet.members if member is not source]
    if not targets:
        raise Refused(f"--to {to} names no other host than {from_}.")
    try:
        for member in targets:  # one after the other: they would share the source's network and its engine
            chosen.fleet.each([member], one)
    finally:
        chosen.fleet.close()
    for text in said.values():
        say(text, file=sys.stderr if json else sys.stdout)
    return int(worst(codes))


def _prune_args(chosen: Any, member: Any, *, everything: bool) -> dict[str, Any]:
    """The repositories that recipes and lock know, and what the lock pins for any host: another host's rest may be wanted."""
    from sparkwright.app.plans.pinning import lock_folder
    from sparkwright.project import recipe
    from sparkwright.project.lock import lockfile
    from sparkwright.protocol.container import locked_ids
    from sparkwright.trust import image_name

    root: Path = chosen.project.root
    lock = lockfile.load(lock_folder(chosen.project, member.host))
    refs = {recipe.load(root, name).image for name in recipe.names(root)} | set(lock.images)
    pinned = {image_name.pinned(ref, entry["digest"]): list(locked_ids(entry)) for ref, entry in lock.images.items()}
    return {
        "repositories": [] if everything else sorted({image_name.Name.parse(one).repository for one in refs}),
        "pinned": pinned,
    }


def _show(host: str, found: dict[str, Any]) -> None:
    """Print what stays and what would go."""
    from sparkwright.console import grid, listed

    going = any(not row["kept"] for row in found["images"])
    rows = [
        (
            *(host, "keep" if row["kept"] else "free", units.size(row["frees_bytes"])),
            *(row["names"][0] if row["names"] else row["id"][7:19], row["kept"]),
        )
        for row in found["images"]
    ]
    listed.show(
        [*map(grid.Column, ("HOST", "STATE")), grid.Column("FREES", 1), *map(grid.Column, ("IMAGE", "WHY"))], rows
    )
    say(f"{host}: would free {units.size(found['freed_bytes'])}." if going else f"{host}: nothing to free.")


def images_collection() -> Collection:
    """`invoke images.prune`, `invoke images.copy`."""
    return Collection(prune, copy)

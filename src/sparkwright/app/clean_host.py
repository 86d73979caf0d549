"""The `host.clean` command: list what sparkwright has put on hosts, ask for confirmation, and remove it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, machines, reach
from sparkwright.app.plans import clusters, recipes
from sparkwright.app.prompts import agreed
from sparkwright.app.questions.host_requests import ask_module, in_turn, run_module
from sparkwright.console import grid
from sparkwright.console.out import say, say_json
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.protocol import events
from sparkwright.trust.image_name import Name

COLUMNS = grid.columns(("HOST", 0), ("STATE", 0), ("SIZE", 1), ("KIND", 0), ("WHAT", 0), ("WHY", 0))


@dataclass(frozen=True, slots=True)
class Scope:
    """Items to remove in addition to sparkwright's own files."""

    #: the servers' containers
    server: bool = False
    #: the models' files
    models: bool = False
    #: the images
    images: bool = False


def clean(pattern: str, scope: Scope, *, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Clean the hosts of a pattern one by one, and return their exit codes.

    Raises Refused if servers would be removed from some members of a cluster but not from all.
    """
    selection = machines(reach(pattern))
    if scope.server and not check:
        clusters.refuse_parts(selection)
    return in_turn(
        selection, lambda member: _host(selection, member, scope, check=check, yes=yes, json=json), json=json
    )


def _host(selection: Selection, member: Member, scope: Scope, *, check: bool, yes: bool, json: bool) -> Exit:
    name, fleet = member.host.name, selection.fleet
    secrets = selection.inventory.secrets(member.host)
    member.secrets = {key: secret for key, secret in secrets.items() if key == "BECOME_PASSWORD"}
    args = {**asdict(scope), **_of_recipe(selection, member)}
    found = ask_module(fleet, member, "clean_host", args)
    going = [row for row in found["items"] if not row["kept"]]
    if not json:
        _show(name, found["items"])
    removed = False
    if not check:
        if found["busy"]:
            fix = f"Follow it with `invoke attach --host {name}`, then clean again."
            raise Refused(f"{name} is in use by run {found['busy']}.", fix=fix)
        removed = agreed(f"Remove these from {name}?", yes=yes)
    if removed:
        _remove(selection, member, args, timer=any(row["kind"] == "timer" for row in going))
    freed = sum(row["size_bytes"] or 0 for row in going) if removed else None
    if json:
        say_json({"host": name, "items": found["items"], "freed_bytes": freed})
    elif freed is not None:
        say(f"{name}: {units.size(freed)} removed.")
    return Exit.OK if removed else Exit.CHANGES


def _of_recipe(selection: Selection, member: Member) -> dict[str, Any]:
    """Return the image repositories that the host's recipes name."""
    hosts = [host for host in selection.inventory.servers_of(member.host.name) if host.recipe]
    wanted = [recipes.recipe_of(selection.project, host) for host in hosts]
    repositories = dict.fromkeys(Name.parse(recipe.image).repository for recipe in wanted)
    return {"repositories": list(repositories)}


def _remove(selection: Selection, member: Member, args: dict[str, Any], *, timer: bool) -> None:
    """Remove the timer first so that no check starts, and sparkwright's own folders last because the other steps need them."""
    fleet = selection.fleet
    if timer:
        absent: dict[str, Any] = {"state": "absent"}
        left = run_module(fleet, member, "health_timer", absent, exclusive=True)["elsewhere"]
        if "system" in left:
            run_module(fleet, member, "health_timer", {**absent, "system": True}, exclusive=True, become=True)
    run_module(fleet, member, "clean_host", args, exclusive=True)
    reported = fleet.request(member, {"verb": "clean", "name": member.host.name}, counted=False)
    ended = events.last_recap(reported)
    if ended is None or ended["exit"]:
        raise events.recap_error(ended)


def _show(host: str, items: list[dict[str, Any]]) -> None:
    sizes = ["unknown" if row["size_bytes"] is None else units.size(row["size_bytes"]) for row in items]
    rows = [
        (host, "keep" if row["kept"] else "remove", size, row["kind"], row["name"], row["kept"])
        for row, size in zip(items, sizes, strict=True)
    ]
    grid.show_plain_table(COLUMNS, rows)
    total = sum(row["size_bytes"] or 0 for row in items if not row["kept"])
    say(f"{host}: {units.size(total)} to remove.")


CACHE_COLUMNS = grid.columns(
    *(("HOST", 0), ("STATE", 0), ("SIZE", 1), ("USED", 2), ("SERVER", 0), ("MODEL", 3), ("CACHE", 4), ("WHY", 0))
)
KEY = 12


def list_caches(selection: Selection, *, json: bool) -> list[Exit]:
    """Show the caches of each host, and why each one is kept."""
    return in_turn(selection, lambda member: _show_caches(selection, member, json=json), json=json)


def prune_caches(selection: Selection, *, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Show the unused caches of each host, ask for confirmation, and remove them.

    Args:
        check: only show them.
    """
    caches = Stored("caches", "prune_caches", "name", _table)
    return in_turn(selection, lambda member: caches.prune(selection, member, {}, check, yes, json), json=json)


@dataclass(frozen=True, slots=True)
class Stored:
    """A kind of item that hosts store and that can be pruned when unused."""

    #: its name in the host's answer and in --json
    name: str
    module: str
    #: the field of a row by which it is removed
    identity: str
    #: prints the rows of a host
    show: Callable[[str, list[dict[str, Any]]], None]

    def prune(
        self, selection: Selection, member: Member, args: dict[str, Any], check: bool, yes: bool, json: bool
    ) -> Exit:
        """Show the stored items of a host, ask for confirmation, and remove the unused ones."""
        host, fleet = member.host.name, selection.fleet
        found = ask_module(fleet, member, self.module, args)
        rows, freed = found[self.name], None
        going = [row[self.identity] for row in rows if not row["kept"]]
        if not json:
            self.show(host, rows)
            say(f"{host}: would free {units.size(found['freed_bytes'])}." if going else f"{host}: nothing to free.")
        if going and not check and agreed(f"Remove these from {host}?", yes=yes):
            only = {**args, "only": going}
            freed = run_module(fleet, member, self.module, only, exclusive=True)["freed_bytes"]
        if json:
            say_json({"host": host, self.name: rows, "freed_bytes": freed})
        elif freed is not None:
            say(f"{host}: {units.size(freed)} freed.")
        return Exit.CHANGES if going and freed is None else Exit.OK


def _show_caches(selection: Selection, member: Member, *, json: bool) -> Exit:
    found = ask_module(selection.fleet, member, "prune_caches", {})
    if json:
        say_json({"host": member.host.name, "caches": found["caches"]})
    else:
        _table(member.host.name, found["caches"])
    return Exit.OK


def _table(host: str, caches: list[dict[str, Any]]) -> None:
    if not caches:
        say(f"{host}: no compile caches.")
        return
    grid.show_plain_table(CACHE_COLUMNS, [_cells(host, row) for row in caches])


def _cells(host: str, row: dict[str, Any]) -> tuple[str, ...]:
    key, slash, aside = row["name"].partition("/")
    used = f"{units.age(max(0.0, time.time() - row['used_s']))} ago" if row["used_s"] else "-"
    state = "aside" if slash else "keep" if row["kept"] else "free"
    about = (row["container"] or "-", row["model"].rpartition("/")[2] or "-", f"{key[:KEY]}{slash}{aside}")
    return (host, state, units.size(row["size_bytes"]), used, *about, row["kept"] or row["why_aside"])

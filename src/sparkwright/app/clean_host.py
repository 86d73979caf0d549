"""The `host.clean`, `caches.list` and `caches.prune` commands: list sparkwright's files or caches on hosts, and remove them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, assign_become_password, connect_hosts, select_machines
from sparkwright.app.plans import clusters, recipes
from sparkwright.app.prompts import NOT_REMOVED_MESSAGE, confirm
from sparkwright.app.queries.host_requests import act_on_each, query_module, run_module
from sparkwright.console import grid
from sparkwright.console.command_output import print_json_line, print_text
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.protocol import events
from sparkwright.trust.image_name import ImageReference

CLEAN_COLUMNS = grid.columns(("HOST", 0), ("STATE", 0), ("SIZE", 1), ("KIND", 0), ("WHAT", 0), ("WHY", 0))
CACHE_COLUMNS = grid.columns(
    *(("HOST", 0), ("STATE", 0), ("SIZE", 1), ("USED", 2), ("SERVER", 0), ("MODEL", 3), ("CACHE", 4), ("WHY", 0))
)
CACHE_KEY_CHARS = 12


@dataclass(frozen=True, slots=True)
class RemovalScope:
    """Items to remove in addition to sparkwright's own files."""

    #: the servers' containers
    server: bool = False
    #: the models' files
    models: bool = False
    #: the images
    images: bool = False


@dataclass(frozen=True, slots=True)
class PrunableItems:
    """A kind of item on hosts, such as images or caches, whose unused ones can be removed."""

    #: key of the items in the module's answer and in --json
    items_key: str
    module: str
    #: key of an item's identity
    identity_key: str
    #: prints the items of a host
    print_items: Callable[[str, list[dict[str, Any]]], None]

    def prune(
        self, selection: Selection, member: Member, args: dict[str, Any], check: bool, yes: bool, json: bool
    ) -> Exit:
        """Show the items on a host, ask for confirmation, and remove the unused ones."""
        host, fleet = member.host.name, selection.fleet
        answer = query_module(fleet, member, self.module, args)
        rows, freed_bytes = answer[self.items_key], None
        removable_ids = [row[self.identity_key] for row in rows if not row["kept"]]
        if not json:
            self.print_items(host, rows)
            print_text(
                f"{host}: would free {units.format_size(answer['freed_bytes'])}."
                if removable_ids
                else f"{host}: nothing to free."
            )
        if removable_ids and not check:
            if confirm(f"Remove these from {host}?", yes=yes):
                removal_args = {**args, "only": removable_ids}
                freed_bytes = run_module(fleet, member, self.module, removal_args, exclusive=True)["freed_bytes"]
            else:
                print_text(f"{host}: {NOT_REMOVED_MESSAGE}", file=sys.stderr)
        if json:
            print_json_line({"host": host, self.items_key: rows, "freed_bytes": freed_bytes})
        elif freed_bytes is not None:
            print_text(f"{host}: {units.format_size(freed_bytes)} freed.")
        return Exit.CHANGES if removable_ids and freed_bytes is None else Exit.OK


def clean(pattern: str, scope: RemovalScope, *, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Clean the hosts that match a pattern, one by one, and return their exit codes.

    Raises Refused if servers would be removed from some members of a cluster but not from all.
    """
    selection = select_machines(connect_hosts(pattern))
    if scope.server and not check:
        clusters.refuse_partial_clusters(selection)
    return act_on_each(
        selection, lambda member: _clean_host(selection, member, scope, check=check, yes=yes, json=json), json=json
    )


def _clean_host(
    selection: Selection, member: Member, scope: RemovalScope, *, check: bool, yes: bool, json: bool
) -> Exit:
    name, fleet = member.host.name, selection.fleet
    assign_become_password(member)
    args = {**asdict(scope), **_recipe_repositories(selection, member)}
    answer = query_module(fleet, member, "clean_host", args)
    removable_items = [row for row in answer["items"] if not row["kept"]]
    if not json:
        _print_items(name, answer["items"])
    removed = False
    if removable_items and not check:
        if answer["busy"]:
            fix = f"Follow it with `invoke attach --host {name}`, then clean again."
            raise Refused(f"{name} is in use by run {answer['busy']}.", fix=fix)
        removed = confirm(f"Remove these from {name}?", yes=yes)
        if not removed:
            print_text(f"{name}: {NOT_REMOVED_MESSAGE}", file=sys.stderr)
    if removed:
        _remove_items(selection, member, args, has_timer=any(row["kind"] == "timer" for row in removable_items))
    freed_bytes = _total_bytes(removable_items) if removed else None
    if json:
        print_json_line({"host": name, "items": answer["items"], "freed_bytes": freed_bytes})
    elif freed_bytes is not None:
        print_text(f"{name}: {format_total(removable_items)} removed.")
    return Exit.CHANGES if removable_items and not removed else Exit.OK


def _recipe_repositories(selection: Selection, member: Member) -> dict[str, Any]:
    """Return the image repositories that the host's recipes use, as an argument of `clean_host`."""
    hosts = [host for host in selection.inventory.servers_of(member.host.name) if host.recipe]
    host_recipes = [recipes.load_host_recipe(selection.project, host) for host in hosts]
    repositories = dict.fromkeys(ImageReference.parse(recipe.image).repository for recipe in host_recipes)
    return {"repositories": list(repositories)}


def _remove_items(selection: Selection, member: Member, args: dict[str, Any], *, has_timer: bool) -> None:
    """Remove the timer first, so that no check starts, and sparkwright's folders last, because the other steps need them."""
    fleet = selection.fleet
    if has_timer:
        absent_args: dict[str, Any] = {"state": "absent"}
        other_timers = run_module(fleet, member, "health_timer", absent_args, exclusive=True)["elsewhere"]
        if "system" in other_timers:
            run_module(fleet, member, "health_timer", {**absent_args, "system": True}, exclusive=True, become=True)
    run_module(fleet, member, "clean_host", args, exclusive=True)
    response = fleet.request(member, {"verb": "clean", "name": member.host.name}, include_recap=False)
    recap = events.find_recap(response)
    if recap is None or recap["exit"]:
        raise events.build_recap_error(recap)


def _print_items(host: str, items: list[dict[str, Any]]) -> None:
    sizes = ["unknown" if row["size_bytes"] is None else units.format_size(row["size_bytes"]) for row in items]
    rows = [
        (host, "keep" if row["kept"] else "remove", size, row["kind"], row["name"], row["kept"])
        for row, size in zip(items, sizes, strict=True)
    ]
    if rows:
        grid.print_table(CLEAN_COLUMNS, rows)
    removable_items = [row for row in items if not row["kept"]]
    print_text(f"{host}: {format_total(removable_items) if removable_items else 'nothing'} to remove.")


def _total_bytes(items: list[dict[str, Any]]) -> int:
    """Return the sum of the known sizes."""
    return sum(row["size_bytes"] or 0 for row in items)


def format_total(items: list[dict[str, Any]]) -> str:
    """Return the total size as text, with "at least" if the size of an item is unknown."""
    is_minimum = any(row["size_bytes"] is None for row in items)
    return f"{'at least ' if is_minimum else ''}{units.format_size(_total_bytes(items))}"


def list_caches(selection: Selection, *, json: bool) -> list[Exit]:
    """Show the caches of each host, and why each is kept."""
    return act_on_each(selection, lambda member: _list_host_caches(selection, member, json=json), json=json)


def prune_caches(selection: Selection, *, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Show the unused caches of each host, ask for confirmation, and remove them.

    Args:
        check: only show them.
    """
    caches = PrunableItems("caches", "prune_caches", "name", _print_caches)
    return act_on_each(selection, lambda member: caches.prune(selection, member, {}, check, yes, json), json=json)


def _list_host_caches(selection: Selection, member: Member, *, json: bool) -> Exit:
    answer = query_module(selection.fleet, member, "prune_caches", {})
    if json:
        print_json_line({"host": member.host.name, "caches": answer["caches"]})
    else:
        _print_caches(member.host.name, answer["caches"])
    return Exit.OK


def _print_caches(host: str, caches: list[dict[str, Any]]) -> None:
    if not caches:
        print_text(f"{host}: no compile caches.")
        return
    grid.print_table(CACHE_COLUMNS, [_cache_cells(host, row) for row in caches])


def _cache_cells(host: str, row: dict[str, Any]) -> tuple[str, ...]:
    key, slash, suffix = row["name"].partition("/")
    last_use = f"{units.format_age(max(0.0, time.time() - row['used_s']))} ago" if row["used_s"] else "-"
    state = "aside" if slash else "keep" if row["kept"] else "free"
    details = (
        row["container"] or "-",
        row["model"].rpartition("/")[2] or "-",
        f"{key[:CACHE_KEY_CHARS]}{slash}{suffix}",
    )
    return (host, state, units.format_size(row["size_bytes"]), last_use, *details, row["kept"] or row["why_aside"])

"""The `caches.list` and `caches.prune` commands: list the compile caches of hosts, and remove them after confirmation."""

from __future__ import annotations

import time
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection
from sparkwright.app.prompts import agreed
from sparkwright.app.questions.host_requests import ask_module, in_turn
from sparkwright.console import grid
from sparkwright.console.out import say, say_json
from sparkwright.errors import Exit
from sparkwright.fleet.member import Member

COLUMNS = grid.columns(
    *(("HOST", 0), ("STATE", 0), ("SIZE", 1), ("USED", 2), ("SERVER", 0), ("MODEL", 3), ("CACHE", 4), ("WHY", 0))
)
KEY = 12


def show(selection: Selection, *, json: bool) -> list[Exit]:
    """Show the caches of each host, with the reason why each is kept."""
    return in_turn(selection, lambda member: _show(selection, member, json=json), json=json)


def prune(selection: Selection, *, check: bool, yes: bool, json: bool) -> list[Exit]:
    """Show the unused caches of each host, ask, and remove them.

    Args:
        check: only show them.
    """
    return in_turn(selection, lambda member: _prune(selection, member, check=check, yes=yes, json=json), json=json)


def _show(selection: Selection, member: Member, *, json: bool) -> Exit:
    found = ask_module(selection.fleet, member, "prune_caches", {}, check=True)
    if json:
        say_json({"host": member.host.name, "caches": found["caches"]})
    else:
        _table(member.host.name, found["caches"])
    return Exit.OK


def _prune(selection: Selection, member: Member, *, check: bool, yes: bool, json: bool) -> Exit:
    found = ask_module(selection.fleet, member, "prune_caches", {}, check=True)
    going = [row for row in found["caches"] if not row["kept"]]
    name, freed = member.host.name, None
    if not json:
        _table(name, found["caches"])
        say(f"{name}: would free {units.size(found['freed_bytes'])}." if going else f"{name}: nothing to free.")
    if going and not check and agreed(f"Remove these from {name}?", yes=yes):
        only = {"only": [row["name"] for row in going]}
        freed = ask_module(selection.fleet, member, "prune_caches", only, exclusive=True)["freed_bytes"]
    if json:
        say_json({"host": name, "caches": found["caches"], "freed_bytes": freed})
    elif freed is not None:
        say(f"{name}: {units.size(freed)} freed.")
    return Exit.CHANGES if going and freed is None else Exit.OK


def _table(host: str, caches: list[dict[str, Any]]) -> None:
    if not caches:
        say(f"{host}: no compile caches.")
        return
    grid.show_plain_table(COLUMNS, [_cells(host, row) for row in caches])


def _cells(host: str, row: dict[str, Any]) -> tuple[str, ...]:
    key, slash, aside = row["name"].partition("/")
    used = f"{units.age(max(0.0, time.time() - row['used_s']))} ago" if row["used_s"] else "-"
    state = "aside" if slash else "keep" if row["kept"] else "free"
    about = (row["container"] or "-", row["model"].rpartition("/")[2] or "-", f"{key[:KEY]}{slash}{aside}")
    return (host, state, units.size(row["size_bytes"]), used, *about, row["kept"] or row["why_aside"])

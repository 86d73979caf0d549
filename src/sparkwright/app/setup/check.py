"""`hosts.check`: what is on each host and what it lacks, a row each."""

from __future__ import annotations

from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, machines, reach
from sparkwright.app.questions import host_checks
from sparkwright.app.questions.one_module import ask_module
from sparkwright.app.setup import survey
from sparkwright.console import grid, plain_table
from sparkwright.console.out import say_error, say_json
from sparkwright.errors import Exit
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.visible import first

COLUMNS = grid.columns(
    *(
        ("HOST", 0),
        ("GPU", 2),
        ("MEMORY", 1),
        ("DISK FREE", 3),
        ("DOCKER", 4),
        ("OLLAMA", 6),
        ("SERVES", 5),
        ("MISSING", 0),
    )
)


def run(pattern: str, *, json: bool) -> list[int]:
    """Log in to the hosts of a pattern and show them. Exit code 1 for one that lacks something, 3 for one that is not reached."""
    chosen = machines(reach(pattern))
    try:
        found = chosen.fleet.ask(lambda member: _of(chosen, member))
    finally:
        chosen.fleet.close()
    errors = chosen.fleet.errors()
    for name, error in errors.items():
        say_error(error, json=json, host=name)
    for name, one in found.items() if json else ():
        say_json({"host": name, **one})
    if not json:
        plain_table.show(COLUMNS, [_row(host.name, found.get(host.name)) for host in chosen.hosts])
    return [*chosen.fleet.codes(), *(Exit.FAILED for one in found.values() if one["missing"])]


def _of(chosen: Selection, member: Member) -> dict[str, Any]:
    """The survey of one host, and what its doctor calls bad: what a deploy would be refused or fail for."""
    names = [host.recipe for host in chosen.inventory.servers_of(member.host.name) if host.recipe]
    recipes = [recipe.load(chosen.project.root, name) for name in names]
    seen = ask_module(chosen.fleet, member, "survey", survey.wanted(recipes))
    judged = host_checks.answer_of(chosen, member)
    bad = [
        {key: one[key] for key in ("check", "evidence", "fix")} for one in judged["findings"] if one["verdict"] == "bad"
    ]
    return {**seen, "missing": bad}


def _row(host: str, one: dict[str, Any] | None) -> tuple[str, ...]:
    if one is None:
        return (host, "-", "-", "-", "-", "-", "-", "unreachable, see above")
    memory = f"{units.gib(one['memory_available_bytes'])} of {units.gib(one['memory_bytes'])} GiB"
    docker, ollama = one["docker"], one["ollama"]
    held = (
        "-"
        if not ollama["reachable"]
        else "hangs"
        if ollama["models"] is None
        else first(ollama["models"], 2) or "idle"
    )
    serves = first([f"{row['name']}:{row['port']}" for row in one["servers"]], 2)
    lacks = [f"{row['check']}: {row['evidence']}" for row in one["missing"]]
    more = f"; {len(lacks) - 1} more: `sparkwright doctor --host {host}`" if lacks[1:] else ""
    lacking = f"{lacks[0]}{more}" if lacks else "nothing"
    return (
        host,
        one["gpu"]["name"] if one["gpu"] else "none",
        memory,
        units.size(one["disk_free_bytes"]),
        str(docker["version"] or "yes") if docker["reachable"] else "no",
        held,
        serves or "-",
        lacking,
    )

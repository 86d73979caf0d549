"""The `hosts.check` command: what each host has and lacks, one row per host."""

from __future__ import annotations

from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, machines, reach
from sparkwright.app.questions import host_checks
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.app.setup import survey
from sparkwright.console import grid
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
    """Log in to the hosts of a pattern and show them.

    Return exit code 1 for a host that lacks something, and 3 for an unreachable host.
    """
    selection = machines(reach(pattern))
    try:
        found = selection.fleet.ask(lambda member: _of(selection, member))
    finally:
        selection.fleet.close()
    errors = selection.fleet.errors()
    for name, error in errors.items():
        say_error(error, json=json, host=name)
    for name, item in found.items() if json else ():
        say_json({"host": name, **item})
    if not json:
        grid.show_plain_table(COLUMNS, [_row(host.name, found.get(host.name)) for host in selection.hosts])
    return [*selection.fleet.codes(), *(Exit.FAILED for row in found.values() if row["missing"])]


def _of(selection: Selection, member: Member) -> dict[str, Any]:
    """Return the survey of one host with the bad findings of its doctor, for which a deploy would be refused or fail."""
    names = [host.recipe for host in selection.inventory.servers_of(member.host.name) if host.recipe]
    recipes = [recipe.load(selection.project.root, name) for name in names]
    seen = ask_module(selection.fleet, member, "survey", survey.wanted(recipes))
    judged = host_checks.answer_of(selection, member)
    bad = [
        {key: finding[key] for key in ("check", "evidence", "fix")}
        for finding in judged["findings"]
        if finding["verdict"] == "bad"
    ]
    return {**seen, "missing": bad}


def _row(host: str, report: dict[str, Any] | None) -> tuple[str, ...]:
    if report is None:
        return (host, "-", "-", "-", "-", "-", "-", "unreachable, see above")
    memory = f"{units.gib(report['memory_available_bytes'])} of {units.gib(report['memory_bytes'])} GiB"
    docker, ollama = report["docker"], report["ollama"]
    held = (
        "-"
        if not ollama["reachable"]
        else "hangs"
        if ollama["models"] is None
        else first(ollama["models"], 2) or "idle"
    )
    serves = first([f"{row['name']}:{row['port']}" for row in report["servers"]], 2)
    lacks = [f"{row['check']}: {row['evidence']}" for row in report["missing"]]
    more = f"; {len(lacks) - 1} more: `sparkwright doctor --host {host}`" if lacks[1:] else ""
    lacking = f"{lacks[0]}{more}" if lacks else "nothing"
    return (
        host,
        report["gpu"]["name"] if report["gpu"] else "none",
        memory,
        units.size(report["disk_free_bytes"]),
        str(docker["version"] or "yes") if docker["reachable"] else "no",
        held,
        serves or "-",
        lacking,
    )

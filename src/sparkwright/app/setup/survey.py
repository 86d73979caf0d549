"""Surveys of hosts, which may not be in a project yet, and the `hosts.check` command, which prints one row per host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, machines, reach
from sparkwright.app.questions import host_checks
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.console import grid
from sparkwright.console.out import say, say_error, say_json
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.visible import first

#: limit on host keys to confirm in one login: the host's and those of its jump hosts
MOST_KEYS = 8
#: decides whether to accept an unknown host key
Accept = Callable[[UnknownKey], bool]


def wanted(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the arguments of the `survey` module for the models of these recipes."""
    pairs = dict.fromkeys((recipe.file.model.id, recipe.file.model.dir) for recipe in recipes)
    return {"ids": [model for model, _ in pairs], "dirs": [folder for _, folder in pairs]}


def of(host: Host, recipes: Sequence[Recipe], accept: Accept) -> dict[str, Any]:
    """Return the answer of the `survey` module. Raises Unreachable, or UnknownKey if `accept` returns False."""
    decided: set[bytes] = set()
    while True:
        fleet = Fleet([Member(host)])
        try:
            fleet.connect()
            return ask_module(fleet, fleet.members[0], "survey", wanted(recipes))
        except UnknownKey as error:
            shown = error.key.asbytes()
            if shown in decided or len(decided) >= MOST_KEYS or not accept(error) or error.target.keep_in is None:
                raise
            decided.add(shown)
            say(f"{host_keys.keep(error.target, error.key, error.target.keep_in)}.")
        finally:
            fleet.close()


def hardware(found: dict[str, Any]) -> str:
    """Return a clause about the GPU, the memory and the disk."""
    gpu = found["gpu"]["name"] if found["gpu"] else "no GPU found"
    memory = f"{units.gib(found['memory_bytes'])} GiB of memory, {units.gib(found['memory_available_bytes'])} available"
    return f"{gpu}, {memory}, {units.size(found['disk_free_bytes'])} of disk free, {found['architecture']}"


def docker(found: dict[str, Any]) -> str:
    """Return a sentence on whether this login can use Docker."""
    about = found["docker"]
    return f"Docker {about['version'] or ''}".rstrip() if about["reachable"] else f"Docker: {about['error']}"


def ollama(found: dict[str, Any]) -> str:
    """Return a sentence about Ollama: whether it runs, and the loaded models, which a deploy would unload."""
    about = found["ollama"]
    if not about["reachable"]:
        return "Ollama is not running"
    if about["models"] is None:
        return "Ollama does not answer: it is loading a model or hung"
    return f"Ollama holds {first(about['models'], 3)}" if about["models"] else "Ollama holds no model"


def servers(found: dict[str, Any]) -> list[str]:
    """Return a sentence for each container that serves models."""
    return [
        f"container {server['name']} ({server['engine']}) serves {first(server['models'], 3) or 'who has its key'}"
        f" on port {server['port']}{', verified by sparkwright' if server['verified'] else ''}"
        for server in found["servers"]
    ]


def lines(found: dict[str, Any]) -> list[str]:
    """Return the results of a survey as sentences, including one for each place of a model."""
    models = [f"{model['id']}: {units.size(model['size_bytes'])} in {model['dir']}" for model in found["models"]]
    return [hardware(found), docker(found), ollama(found), *servers(found), *models]


def missing(found: dict[str, Any]) -> list[str]:
    """Return what the host lacks for a deploy, each in a few words."""
    lacks = [] if found["gpu"] else ["no GPU found"]
    lacks += [] if found["docker"]["reachable"] else [f"Docker: {found['docker']['error']}"]
    return lacks


def refused(error: SparkwrightError) -> bool:
    """Return True if the host answered but accepted none of the keys, so that the user has to copy a key to it."""
    return "accepts none of" in error.message


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


def check_hosts(pattern: str, *, json: bool) -> list[int]:
    """Log in to the hosts of a pattern and show them.

    Returns exit code 1 for a host that lacks something, and 3 for an unreachable host.
    """
    selection = machines(reach(pattern))
    try:
        found = selection.fleet.ask(lambda member: _survey(selection, member))
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


def _survey(selection: Selection, member: Member) -> dict[str, Any]:
    """Return a host's survey along with the `doctor` findings for which a deploy would be refused or fail."""
    names = [host.recipe for host in selection.inventory.servers_of(member.host.name) if host.recipe]
    recipes = [recipe.load(selection.project.root, name) for name in names]
    seen = ask_module(selection.fleet, member, "survey", wanted(recipes))
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

"""Survey hosts, including hosts that are not in a project yet, and print one row per host (`hosts.check`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkwright import units
from sparkwright.app.connect import Selection, connect_hosts, select_machines
from sparkwright.app.queries import host_checks
from sparkwright.app.queries.host_requests import query_module
from sparkwright.console import grid
from sparkwright.console.command_output import print_error, print_json_line, print_text
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.visible import join_first

#: maximum number of host keys to confirm in one login: the host's and those of its jump hosts
MAX_HOST_KEYS = 8
#: decides whether to accept an unknown host key
AcceptHostKey = Callable[[UnknownKey], bool]

COLUMNS = grid.columns(
    *(
        ("HOST", 0),
        ("GPU", 2),
        ("MEMORY", 1),
        ("DISK FREE", 3),
        ("DOCKER", 4),
        ("OLLAMA", 6),
        ("SERVES", 5),
        ("PROBLEMS", 0),
    )
)


def survey_arguments(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the arguments of the `survey` module for the models of these recipes."""
    pairs = dict.fromkeys((recipe.file.model.id, recipe.file.model.dir) for recipe in recipes)
    return {"ids": [model for model, _ in pairs], "dirs": [folder for _, folder in pairs]}


def query_host(host: Host, recipes: Sequence[Recipe], accept_key: AcceptHostKey) -> dict[str, Any]:
    """Survey a host and return the answer. Raises Unreachable, or UnknownKey if `accept_key` returns False."""
    decided_keys: set[tuple[str, bytes]] = set()
    while True:
        fleet = Fleet([Member(host)])
        try:
            fleet.connect()
            return query_module(fleet, fleet.members[0], "survey", survey_arguments(recipes))
        except UnknownKey as error:
            name_and_key = (error.target.host_key_name, error.key.asbytes())  # cloned hosts have the same key
            if (
                name_and_key in decided_keys
                or len(decided_keys) >= MAX_HOST_KEYS
                or not accept_key(error)
                or error.target.new_keys_file is None
            ):
                raise
            decided_keys.add(name_and_key)
            print_text(f"{host_keys.save_key(error.target, error.key, error.target.new_keys_file)}.")
        finally:
            fleet.close()


def describe_hardware(survey: dict[str, Any]) -> str:
    """Describe the GPU, the memory and the disk in a clause."""
    gpu_name = survey["gpu"]["name"] if survey["gpu"] else "no GPU found"
    memory = (
        f"{units.format_gib(survey['memory_bytes'])} GiB of memory, "
        f"{units.format_gib(survey['memory_available_bytes'])} available"
    )
    return (
        f"{gpu_name}, {memory}, {units.format_size(survey['disk_free_bytes'])} of disk free, {survey['architecture']}"
    )


def describe_ollama(survey: dict[str, Any]) -> str:
    """Describe Ollama and its loaded models, which a deploy would unload, in a sentence."""
    state = survey["ollama"]
    if not state["reachable"]:
        return "Ollama is not running"
    if state["models"] is None:
        return "Ollama does not answer: it is either loading a model or hung"
    return f"Ollama has loaded {join_first(state['models'], 3) or 'no model'}"


def describe_servers(survey: dict[str, Any]) -> list[str]:
    """Describe each container that serves models in a sentence."""
    return [
        f"container {server['name']} ({server['engine']}) serves "
        f"{join_first(server['models'], 3) or 'unknown models (it requires a key)'} on port {server['port']}"
        f"{', verified by sparkwright' if server['verified'] else ''}"
        for server in survey["servers"]
    ]


def format_lines(survey: dict[str, Any]) -> list[str]:
    """Return the results of a survey as sentences, including one for each folder that contains a model."""
    docker = survey["docker"]
    models = [
        f"{model['id']}: {units.format_size(model['size_bytes'])} in {model['dir']}" for model in survey["models"]
    ]
    return [
        describe_hardware(survey),
        f"Docker {docker['version'] or ''}".rstrip() if docker["reachable"] else f"Docker: {docker['error']}",
        describe_ollama(survey),
        *describe_servers(survey),
        *models,
    ]


def is_ready(survey: dict[str, Any]) -> bool:
    """Return True if the host has a GPU, and the login user can use Docker."""
    return bool(survey["gpu"] and survey["docker"]["reachable"])


def check_hosts(pattern: str, *, json: bool) -> list[int]:
    """Survey the hosts that match a pattern and print a row for each. Return the exit codes.

    The code is 1 for a host with problems, and 3 for an unreachable host.
    """
    selection = select_machines(connect_hosts(pattern))
    try:
        surveys = selection.fleet.query_all(lambda member: _survey_member(selection, member))
    finally:
        selection.fleet.close()
    errors = selection.fleet.errors()
    for name, error in errors.items():
        print_error(error, json=json, host=name)
    for name, survey in surveys.items() if json else ():
        print_json_line({"host": name, **survey})
    if not json:
        grid.print_table(
            COLUMNS, [_host_row(host.name, surveys.get(host.name), errors.get(host.name)) for host in selection.hosts]
        )
    return [*selection.fleet.exit_codes(), *(Exit.FAILED for survey in surveys.values() if survey["missing"])]


def _survey_member(selection: Selection, member: Member) -> dict[str, Any]:
    """Return a host's survey, with the bad `doctor` findings as `missing`."""
    names = [host.recipe for host in selection.inventory.servers_of(member.host.name) if host.recipe]
    recipes = [recipe.load(selection.project.root, name) for name in names]
    survey = query_module(selection.fleet, member, "survey", survey_arguments(recipes))
    checks = host_checks.query_machine(selection, member)
    problems = [
        {key: finding[key] for key in ("check", "evidence", "fix")}
        for finding in checks["findings"]
        if finding["verdict"] == "bad"
    ]
    return {**survey, "missing": problems}


def _host_row(host: str, survey: dict[str, Any] | None, error: SparkwrightError | None) -> tuple[str, ...]:
    if survey is None:
        problem = "unreachable" if error is not None and error.exit == Exit.UNREACHABLE else "no survey"
        return (host, "-", "-", "-", "-", "-", "-", f"{problem}, see above")
    memory = f"{units.format_gib(survey['memory_available_bytes'])} of {units.format_gib(survey['memory_bytes'])} GiB"
    docker, ollama = survey["docker"], survey["ollama"]
    ollama_models = (
        "-"
        if not ollama["reachable"]
        else "hangs"
        if ollama["models"] is None
        else join_first(ollama["models"], 2) or "idle"
    )
    servers = join_first([f"{row['name']}:{row['port']}" for row in survey["servers"]], 2)
    problems = [f"{row['check']}: {row['evidence']}" for row in survey["missing"]]
    more_problems = f"; {len(problems) - 1} more: `invoke doctor --host {host}`" if problems[1:] else ""
    problem_summary = f"{problems[0]}{more_problems}" if problems else "nothing missing"
    return (
        host,
        survey["gpu"]["name"] if survey["gpu"] else "none",
        memory,
        units.format_size(survey["disk_free_bytes"]),
        str(docker["version"] or "yes") if docker["reachable"] else "no",
        ollama_models,
        servers or "-",
        problem_summary,
    )

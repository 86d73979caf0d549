"""The commands for hosts, Ollama and the runtime."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit, Refused

EVENTS_HELP = "events as JSON lines"


@command(
    name="list",
    default=True,
    help={
        "host": "a host, a group, several (spark1,spark2), or all (default)",
        "json": "one JSON object per host: host, connection, address, groups, recipe",
    },
)
def list_hosts(host: str = "all", json: bool = False) -> None:
    """List the hosts: address, groups, recipe."""
    from sparkwright.app.connect import select_hosts
    from sparkwright.app.queries import host_records

    host_records.print_host_list(select_hosts(host).hosts, json=json)


@command(
    word="name",
    help={
        "name": "the host's name in the project (default: the first label of its address)",
        "address": "a name, an IP address or an ssh alias: [USER@]ADDRESS[:PORT] (default: NAME)",
        "recipe": "the recipe to serve (default: the best that fits)",
        "groups": "the host's groups, e.g. lab,night (default: lab)",
        "offline": "write the file without logging in",
        "yes": "do not ask for confirmation",
        "json": "one JSON object: host, address, recipe, groups, files, survey, budget",
    },
)
def add(
    name: str | None = None,
    address: str = "",
    recipe: str = "",
    groups: str = "",
    offline: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Exit:
    """Add a host to the project.

    Logs in, shows what it finds, and writes hosts/NAME.yml and its groups. On a terminal it asks for a missing host (found in
    your ssh configuration, known_hosts and by mDNS) and recipe. An unknown host key must be confirmed; without a terminal it is
    refused (exit code 3).
    """
    from sparkwright.app import prompts
    from sparkwright.app.setup import dialog
    from sparkwright.visible import parse_list

    interactive = prompts.can_prompt() and not (yes or json)
    if not (name or address or interactive):
        raise Refused("no host was named: pass NAME, --address ADDRESS, or both.")
    host = None
    if name or address:
        host = dialog.host_from_options(address or str(name), name=name or "", groups=tuple(parse_list(groups)))
    return dialog.add_host(host, recipe_name=recipe, interactive=interactive, offline=offline, json=json)


@command(
    help={
        "host": "the hosts (default: all but sandboxes)",
        "json": "one JSON object per host: the result of the `survey` module, and missing",
    }
)
def check(host: str = "", json: bool = False) -> list[int]:
    """Log in to hosts and show what each has and lacks.

    One row per host: GPU, memory, disk, Docker, Ollama, servers, and the first problem that would make a deploy fail. Exit code:
    0 nothing is missing, 1 something is missing, 3 a host is unreachable.
    """
    from sparkwright.app.connect import default_pattern
    from sparkwright.app.setup import survey

    return survey.check_hosts(host or default_pattern(), json=json)


@command(help={"json": EVENTS_HELP})
def ps(host: str = "", json: bool = False) -> list[int]:
    """List the models that Ollama has loaded.

    Also shows whether Ollama runs as a service, a process or a container. Changes nothing.
    """
    from sparkwright.app.connect import select_hosts, select_machines
    from sparkwright.app.runs import session
    from sparkwright.fleet.member import build_module_request

    return session.send_request(select_machines(select_hosts(host)), build_module_request("ollama_ps", {}), json=json)


@command(
    help={
        "timeout-s": "time limit for a busy model to finish its request, in seconds (default 60)",
        "json": EVENTS_HELP,
    }
)
def unload(host: str = "", timeout_s: float = 60.0, json: bool = False) -> list[int]:
    """Unload Ollama's models; Ollama stays up.

    Unloads every model of every Ollama instance on the host.
    """
    from sparkwright.app.connect import select_hosts, select_machines
    from sparkwright.app.runs import session

    return session.run_module_task(
        select_machines(select_hosts(host)), "ollama_unload", {"timeout_s": timeout_s}, json=json
    )


@command(
    help={
        "machine": "the hosts' processors, as `uname -m` prints them: aarch64 (default), x86_64, or both",
        "python": "the hosts' Python versions, of 3.11 to 3.14: 3.12 (default, DGX OS 7) or 3.11,3.12",
    }
)
def fetch(machine: str = "aarch64", python: str = "3.12") -> None:
    """Download the hosts' runtime, for an offline deploy.

    Stores it in this laptop's cache, so that a first deploy does not download it.
    """
    from sparkwright.app.stores import runtimes

    runtimes.fetch_wheels(machine, python)


@command()
def install(host: str = "") -> list[Exit]:
    """Install a runtime that is owned by root.

    Copies it to /opt/sparkwright/runtime with sudo. From then on, tasks with `become` use only this runtime on that host, and
    each new version of sparkwright must be installed with this command again. `sudo rm -r /opt/sparkwright` undoes it.
    """
    from sparkwright.app.connect import select_hosts
    from sparkwright.app.stores import runtimes

    return runtimes.install(select_hosts(host))


@command(
    help={
        "server": "remove the server's container too",
        "models": "remove the models' files too, except those that a remaining container uses",
        "images": "remove the recipes' images too, except those that a remaining container uses",
        "check": "only list; exit code 2 if something would be removed",
        "yes": "do not ask for confirmation",
        "json": "one JSON object per host: its items, and the bytes freed (null if nothing was removed)",
    }
)
def clean(
    host: str = "",
    server: bool = False,
    models: bool = False,
    images: bool = False,
    check: bool = False,
    yes: bool = False,
    json: bool = False,
) -> list[Exit]:
    """Remove everything sparkwright put on a host.

    Lists the items with their sizes first, and asks. The server keeps running unless --server is given. Removed: the runtime,
    state and journals, the health timer, run scripts, previous containers kept for a rollback, unused compile caches, server
    keys that nothing mounts, and files stored next to models. Refused (exit code 5) while the host has an active run.
    """
    from sparkwright.app import clean_host

    scope = clean_host.RemovalScope(server=server, models=models, images=images)
    return clean_host.clean(host, scope, check=check, yes=yes, json=json)


TASKS = {"hosts": [list_hosts, add, check], "host": [clean], "ollama": [ps, unload], "runtime": [fetch, install]}

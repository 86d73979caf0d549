"""The commands about hosts themselves: the inventory, Ollama on them, the runtime they get."""

from __future__ import annotations

from typing import Any

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit

EVENTS = "events as JSON lines"


@command(help={"json": "one JSON object a host"})
def hosts(host: str = "all", json: bool = False) -> None:
    """List the hosts: address, groups, recipe."""
    from sparkwright.app.connect import choose
    from sparkwright.app.questions import host_list

    host_list.show(choose(host).hosts, json=json)


@command(help={"json": EVENTS})
def ps(host: str = "", json: bool = False) -> list[int]:
    """List the models that Ollama holds in memory.

    And how Ollama runs there: service, process or container. Changes nothing.
    """
    return _run(host, "ollama_ps", {}, read_only=True, json=json)


@command(
    help={"timeout-s": "how long a busy model may take to finish its request, seconds (default 60)", "json": EVENTS}
)
def unload(host: str = "", timeout_s: float = 60.0, json: bool = False) -> list[int]:
    """Unload Ollama's models; Ollama stays up.

    Every model of every Ollama on the host.
    """
    return _run(host, "ollama_unload", {"timeout_s": timeout_s}, read_only=False, json=json)


def _run(host: str, module: str, args: dict[str, Any], *, read_only: bool, json: bool) -> list[int]:
    from sparkwright.app.connect import choose
    from sparkwright.app.runs import session

    return session.one_task(choose(host), module, args, read_only=read_only, json=json)


@command(
    help={
        "machine": "the hosts' processors, as `uname -m` prints them: aarch64 (default) or aarch64,x86_64",
        "python": "their Python: 3.12 (default, DGX OS 7) or 3.11,3.12",
    }
)
def fetch(machine: str = "aarch64", python: str = "3.12") -> None:
    """Download the hosts' runtime, for an offline deploy.

    Into this laptop's cache: a first deploy then needs no internet for it.
    """
    from sparkwright.app.stores import runtime_cache

    runtime_cache.fetch(machine, python)


@command(
    help={
        "server": "remove the server's container too",
        "models": "remove the model's files too",
        "images": "remove the server's images too",
        "check": "list only: exits with 2",
        "yes": "do not ask",
        "json": "one object a host: what is there, and what was freed (null: nothing was removed)",
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

    Lists it first, each part with its size, and asks. The server keeps running. Removed: the runtime, state and journals, the
    health timer, run scripts, previous containers kept for a rollback, server keys that nothing mounts, and files kept beside
    models. Refused (exit code 5) while a run is under way on the host.
    """
    from sparkwright.app import clean_host

    scope = clean_host.Scope(server=server, models=models, images=images)
    return clean_host.clean(host, scope, check=check, yes=yes, json=json)


TASKS = {"": [hosts], "host": [clean], "ollama": [ps, unload], "runtime": [fetch]}

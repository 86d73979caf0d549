"""The commands about hosts themselves: the inventory, Ollama on them, the runtime they get."""

from __future__ import annotations

from typing import Any

from invoke.collection import Collection

from sparkwright.app.outcome import worst
from sparkwright.cli.framework.command import command

EVENTS = "events as JSON lines"


@command(help={"json": "one JSON object a host"})
def hosts(context: object, host: str = "all", json: bool = False, debug: bool = False) -> int:
    """List the hosts: address, groups, recipe."""
    from sparkwright.app.connect import choose
    from sparkwright.app.questions import host_list

    host_list.show(choose(host).hosts, json=json)
    return 0


@command(help={"json": EVENTS})
def ps(context: object, host: str = "", json: bool = False, debug: bool = False) -> int:
    """List the models that Ollama holds in memory.

    And how Ollama runs there: service, process or container. Changes nothing.
    """
    return _run(host, "ollama_ps", {}, read_only=True, json=json)


@command(help={"timeout-s": "how long a busy model may take to end its request, seconds (default 60)", "json": EVENTS})
def unload(context: object, host: str = "", timeout_s: float = 60.0, json: bool = False, debug: bool = False) -> int:
    """Unload Ollama's models; Ollama stays up.

    Every model of every Ollama on the host.
    """
    return _run(host, "ollama_unload", {"timeout_s": timeout_s}, read_only=False, json=json)


def _run(host: str, module: str, args: dict[str, Any], *, read_only: bool, json: bool) -> int:
    from sparkwright.app import session
    from sparkwright.app.connect import choose

    return worst(session.one_task(choose(host), module, args, read_only=read_only, json=json))


@command(
    help={
        "machine": "the hosts' processors, as `uname -m` prints them: aarch64 (default) or aarch64,x86_64",
        "python": "their Python: 3.12 (default, DGX OS 7) or 3.11,3.12",
    }
)
def fetch(context: object, machine: str = "aarch64", python: str = "3.12", debug: bool = False) -> int:
    """Download the hosts' runtime, for an offline deploy.

    Into this laptop's cache: a first deploy then needs no internet for it.
    """
    from sparkwright.app.stores import runtime_cache

    runtime_cache.fetch(machine, python)
    return 0


def ollama_collection() -> Collection:
    """`invoke ollama.ps`, `invoke ollama.unload`."""
    return Collection(ps, unload)


def runtime_collection() -> Collection:
    """`invoke runtime.fetch`."""
    return Collection(fetch)


TASKS = [hosts]

"""The survey of a host that may not be in a project yet. An unknown host key is shown, never accepted silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkwright import units
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.console.out import say
from sparkwright.errors import SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.remote.ssh import host_keys
from sparkwright.remote.ssh.host_keys import UnknownKey
from sparkwright.visible import first

#: most host keys to confirm in one login: the host's, and those of its jump hosts
MOST_KEYS = 8
#: returns True to accept an unknown host key
Accept = Callable[[UnknownKey], bool]


def wanted(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the arguments of the module `survey`: the models of these recipes."""
    pairs = dict.fromkeys((recipe.file.model.id, recipe.file.model.dir) for recipe in recipes)
    return {"ids": [model for model, _ in pairs], "dirs": [folder for _, folder in pairs]}


def of(host: Host, recipes: Sequence[Recipe], accept: Accept) -> dict[str, Any]:
    """Return the answer of the module `survey`. Raises Unreachable, or UnknownKey if `accept` returns False."""
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
    """Return GPU, memory and disk in one sentence."""
    gpu = found["gpu"]["name"] if found["gpu"] else "no GPU found"
    memory = f"{units.gib(found['memory_bytes'])} GiB of memory, {units.gib(found['memory_available_bytes'])} available"
    return f"{gpu}, {memory}, {units.size(found['disk_free_bytes'])} of disk free, {found['architecture']}"


def docker(found: dict[str, Any]) -> str:
    """Return a sentence on whether this login can use Docker."""
    about = found["docker"]
    return f"Docker {about['version'] or ''}".rstrip() if about["reachable"] else f"Docker: {about['error']}"


def ollama(found: dict[str, Any]) -> str:
    """Return a sentence on whether Ollama runs, and the models it holds, which a deploy would unload."""
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
    """Return the results of a survey as sentences, with one for each place of a model."""
    models = [f"{model['id']}: {units.size(model['size_bytes'])} in {model['dir']}" for model in found["models"]]
    return [hardware(found), docker(found), ollama(found), *servers(found), *models]


def missing(found: dict[str, Any]) -> list[str]:
    """Return what the host lacks for a deploy, in a few words each."""
    lacks = [] if found["gpu"] else ["no GPU found"]
    lacks += [] if found["docker"]["reachable"] else [f"Docker: {found['docker']['error']}"]
    return lacks


def refused(error: SparkwrightError) -> bool:
    """Return True if the host answered and accepted none of the keys: the user has to copy a key to it."""
    return "accepts none of" in error.message

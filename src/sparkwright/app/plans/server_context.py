"""Everything a server's plan depends on besides its own recipe: the other servers of its machine, turns, interim servers.

These are the gateways in front of it, the other servers of its machine, the servers that share its memory by turns, and an
interim server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans.pins import entries, lock_of
from sparkwright.errors import Refused
from sparkwright.project import gateway_routes, gateway_servers, recipe
from sparkwright.project.gateway_servers import in_front_of, load
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.inventory.rules import Mistake
from sparkwright.project.recipe.engine_settings import served_memory


def of(selection: Selection, host: Host) -> dict[str, Any]:
    """Return gateways, other servers, turns and interim server, as `recipe.scope` takes them.

    Raises Refused if the servers of a machine conflict.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = in_front_of(root, inventory, host)
    others = {"other_servers": other_servers_of(selection, host), "turns": turns_of(root, inventory, host)}
    return {"gateways": gateways, **others, "interim": interim_of(selection, host)}


BESIDE = "beside"


def interim_of(selection: Selection, host: Host) -> dict[str, Any]:
    """Return `port` and `alone` of the interim server.

    `port` is 0 if there can be no interim server. `alone` is True if no other host behind a gateway serves the model.

    Raises Refused, with the line, for `swap: beside` if no gateway would send requests to it.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = [gateway for gateway in inventory.gateways.values() if host.machine in gateway.members]
    if host.vars.get("swap") == BESIDE and (host.cluster is not None or not gateways):
        why = f"{host.name} is a member of a cluster, which is replaced in place" if host.cluster else _NOBODY
        raise Refused(f"`swap: beside`: {why}.", where=host.set_at.get("vars.swap", host.where), fix=_FIX)
    if not gateways or not host.recipe or host.cluster is not None:
        return {"port": 0, "alone": False}
    wanted = load(root, host)
    others = (server for gateway in gateways for server in gateway_routes.readable(root, inventory, gateway))
    same = {other.host.name for other in others if other.recipe.served_name == wanted.recipe.served_name}
    return {"port": gateway_servers.port(root, inventory, wanted), "alone": same <= {host.name}}


_NOBODY = "no gateway is in front of this host, to send requests to a second server"
_FIX = "Write `swap: auto`, or give its group a gateway (docs/gateway.md)."


def turns_of(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return the servers that take turns with a server, including itself, as they are listed.

    Each has name (of the container), host (name of its target), recipe and gateways (those in front of it). Empty for a server
    that is always on.
    """
    if not host.turns:
        return []
    return [
        {
            "name": server.server,
            "host": server.name,
            "recipe": server.recipe,
            "gateways": in_front_of(project, inventory, server),
        }
        for server in inventory.servers_of(host.machine)
        if server.server in host.turns
    ]


def other_servers_of(selection: Selection, host: Host) -> list[dict[str, Any]]:
    """Return the other servers of a host's machine.

    Each has recipe, name (of the container), on_demand, utilization, needs_bytes and engine_memory.

    Raises Refused, with file and line, if two need the same port or different files in the same folder.
    """
    if not host.on:
        return []
    lock = lock_of(selection.project, host)
    mine, found = _recipe(selection, host), []
    for other in selection.inventory.servers_of(host.machine):
        if other.name == host.name:
            continue
        wanted = _recipe(selection, other)
        for message, where, fix in _mistakes(host, mine, other, wanted):
            raise Refused(message, where=where, fix=fix)
        memory = served_memory(wanted, entries(lock, wanted))
        about = {"recipe": wanted.name, "name": wanted.file.container.name, "on_demand": bool(other.turns)}
        found.append(
            {**about, "utilization": memory.share, "needs_bytes": memory.bytes, "engine_memory": memory.to_json()}
        )
    return found


def _recipe(selection: Selection, host: Host) -> recipe.Recipe:
    return recipe.load(selection.project.root, str(host.recipe), named_at=host.set_at.get("recipe", ""))


def _mistakes(host: Host, mine: recipe.Recipe, other: Host, wanted: recipe.Recipe) -> Iterator[Mistake]:
    where = host.set_at.get("recipe", host.where)
    both = f"{mine.name} and {wanted.name}"
    if same := sorted(_ports(host, mine) & _ports(other, wanted)):
        fix = f"Publish one elsewhere: `- {{recipe: {mine.name}, port: {_free(same[0])}}}` in the host's list."
        yield f"{both} both want port {same[0]} of {host.machine}.", where, fix
    theirs = _folders(wanted)
    for folder, model in _folders(mine).items():
        if theirs.get(folder, model) != model:
            roles = [role for role, second_model in mine.file.further.items() if second_model.dir == folder]
            place = mine.file.place_of(roles[0]) if roles else ("model", "dir")
            yield (
                f"{both} keep different models in {folder}.",
                mine.source.where(*place),
                "Give one another `dir`.",
            )


def _folders(wanted: recipe.Recipe) -> dict[str, tuple[str, str, str]]:
    """Return the id, revision and file choice of the model in each model folder of a recipe."""
    model = wanted.file.model
    found = {
        second_model.dir: (second_model.id, second_model.revision, second_model.chosen(role))
        for role, second_model in wanted.file.further.items()
    }
    return {model.dir: (model.id, model.revision, model.chosen), **found}


def _ports(host: Host, wanted: recipe.Recipe) -> set[int]:
    """Return every port of the machine that a server occupies: its own port, and others that its container publishes."""
    others = [text.split(":")[-2] for text in wanted.file.container.ports[1:] if ":" in text]
    return {recipe.serve_port(host, wanted), *(int(port) for port in others if port.isdigit())}


def _free(port: int) -> int:
    return port + 1 if port < 65535 else port - 1

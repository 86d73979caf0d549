"""The other servers of a host's machine: their shares of the memory, and conflicts between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans.pins import entries, lock_of
from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.name_rules import Mistake
from sparkwright.project.recipe.engine_settings import served_memory


def of(selection: Selection, host: Host) -> list[dict[str, Any]]:
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

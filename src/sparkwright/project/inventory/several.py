"""A host that serves several recipes: a target for each, with the machine's address and its own recipe, port and container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright import defaults, units, visible
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.inventory.cluster import Cluster
from sparkwright.project.inventory.host import NEVER, Host, Wake
from sparkwright.project.inventory.models import ServedFile
from sparkwright.project.inventory.rules import Mistake, Own
from sparkwright.trust.names import STEP, why_not_a_file

#: the keys of a host's file that list recipes: served side by side, or sharing memory by turns
SERVES, ON_DEMAND = "serves", "on_demand"
WAKE_KEYS = ("wake", "sleep_after", "stay_awake")


@dataclass(frozen=True)
class _Listed:
    """An entry of `serves` or of `on_demand`."""

    file: ServedFile
    key: str
    #: "file:line"
    where: str


def targets(project: Path, host: Host, own: Own) -> list[Host]:
    """Return a target for each recipe that a host serves; the host itself if it has one recipe.

    Raises Refused with file and line.
    """
    if not own.file.several:
        return [host]
    listed = _listed(own)
    for message, where, fix in _mistakes(host, own, listed):
        raise Refused(message, where=where, fix=fix)
    found = [_target(project, host, listing) for listing in listed]
    taken: dict[str, Host] = {}
    for target, listing in zip(found, listed, strict=True):
        if target.server in taken:
            both = f"{taken[target.server].recipe} and {target.recipe}"
            message = f"{both} would both run as the container '{visible.name(target.server)}'."
            raise Refused(message, where=listing.where, fix="Give one recipe another `container.name`.")
        taken[target.server] = target
    turns = tuple(target.server for target, listing in zip(found, listed, strict=True) if listing.key == ON_DEMAND)
    return [replace(item, turns=turns) if item.server in turns else item for item in found]


def refuse_members(owns: Mapping[str, Own], clusters: Mapping[str, Cluster]) -> None:
    """Raise Refused for a member of a cluster that serves other recipes beside the cluster's."""
    for cluster in clusters.values():
        for name in cluster.members:
            if owns[name].file.several:
                key = SERVES if owns[name].file.serves is not None else ON_DEMAND
                message = f"{name} is a member of the cluster {cluster.name}, which serves a recipe of its own."
                where = owns[name].source.where(key)
                raise Refused(message, where=where, fix=f"Remove `{key}` here, or the host from the group.")


def _listed(own: Own) -> list[_Listed]:
    lists = ((SERVES, own.file.serves), (ON_DEMAND, own.file.on_demand))
    return [
        _Listed(
            ServedFile.model_validate({"recipe": entry}) if isinstance(entry, str) else entry,
            key,
            own.source.where(key, n),
        )
        for key, entries in lists
        for n, entry in enumerate(entries or ())
    ]


def _mistakes(host: Host, own: Own, listed: Sequence[_Listed]) -> Iterator[Mistake]:
    key = listed[0].key
    if own.file.recipe:
        fix = "List all recipes under `serves`."
        yield f"`recipe` and `{key}` are both set.", own.source.where("recipe"), fix
    if host.serve_port:
        at = host.set_at.get("serve_port", own.source.where(key))
        fix = f"Write the port beside the recipe: `{key}: [{{recipe: NAME, port: 8001}}]`."
        yield "`serve_port` cannot tell which of several servers it is for.", at, fix
    if own.file.on_demand is not None and len(own.file.on_demand) == 1:
        message = "`on_demand` has one recipe: nothing takes turns with it."
        yield message, own.source.where(ON_DEMAND), "Add another one, or list it under `serves`."
    yield from _wake_mistakes(listed)
    names = [listing.file.recipe for listing in listed]
    for n, listing in enumerate(listed):
        shown = visible.name(names[n])
        if why := why_not_a_file(names[n]):
            yield f"the recipe '{shown}' {why}.", listing.where, "Name a file of recipes/."
        if names[n] in names[:n]:
            yield f"the recipe {shown} is listed twice.", listing.where, "List each recipe once."


def _wake_mistakes(listed: Sequence[_Listed]) -> Iterator[Mistake]:
    wakes = any(listing.file.wake for listing in listed if listing.key == ON_DEMAND)
    for listing in listed:
        file, shown = listing.file, visible.name(listing.file.recipe)
        key = next((key for key in WAKE_KEYS if getattr(file, key) is not None), "")
        if key and listing.key != ON_DEMAND:
            message = f"`{key}` of {shown}: it is always on, and takes no turns."
            yield message, listing.where, f"Remove it, or list {shown} under `on_demand`."
        elif file.sleep_after and not file.wake:
            message = f"`sleep_after` of {shown}: no request wakes it, so nothing puts it back."
            yield message, listing.where, "Add `wake: on_request`, or remove `sleep_after`."
        elif file.stay_awake and not wakes:
            message = f"`stay_awake` of {shown}: no request wakes another one in its place."
            yield message, listing.where, "Add `wake: on_request` to one of `on_demand`, or remove `stay_awake`."


def wake_of(file: ServedFile) -> Wake:
    """Return how requests change the turn of a server on demand."""
    sleep_after_s = units.seconds(file.sleep_after) if file.sleep_after else 0.0
    return Wake(file.wake is not None, sleep_after_s, units.seconds(file.stay_awake or defaults.STAY_AWAKE))


def _target(project: Path, host: Host, listing: _Listed) -> Host:
    name = listing.file.recipe
    path = project / "recipes" / f"{name}.yml"
    return replace(
        host,
        name=f"{host.name}/{name}",
        on=host.name,
        recipe=name,
        serve_port=listing.file.port,
        server=_container(path, name),
        wake=wake_of(listing.file) if listing.key == ON_DEMAND else NEVER,
        key_variable=key_variable(path) if host.connection != "ssh" else "",
        set_at={**host.set_at, "recipe": listing.where, "serve_port": listing.where},
    )


def _container(path: Path, recipe: str) -> str:
    """Return the name of a recipe's container. Mistakes in the recipe are found by its own check."""
    found = _part(path, "container").get("name")
    return found if isinstance(found, str) and STEP.fullmatch(found) else recipe


def key_variable(path: Path) -> str:
    """Return the environment variable with the key of a recipe's server; empty for none.

    Mistakes in the recipe are found by its own check.
    """
    try:
        if b"server_key" not in path.read_bytes():
            return ""
    except (OSError, ValueError):
        return ""
    return str(_part(path, "server_key").get("env") or "")


def _part(path: Path, key: str) -> Mapping[str, Any]:
    try:
        found = document.load(path).data[key]
    except (OSError, ValueError, Refused, AttributeError, KeyError, TypeError):
        return {}
    return found if isinstance(found, Mapping) else {}

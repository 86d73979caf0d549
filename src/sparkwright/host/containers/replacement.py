"""The container that a recipe's server replaces.

A recipe names its container. If the host is to serve another recipe, the present server has another name: it is the one that was
verified here last. It is compared, drained, stopped, kept and restored as if it had the recipe's name
(docs/decisions/0034-another-recipe.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.containers import container_labels, containers, lifecycle
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust.names import STEP


@dataclass(frozen=True, slots=True)
class Created:
    """The container that this run created to replace the server, until it is started."""

    id: str
    #: what it was created from
    spec: ContainerSpec


def current(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect of the server that a recipe with this container name replaces; empty if there is none.

    In order: our container of this name; the last verified server; the server that an interrupted run started in its place; a
    container of this name that is not ours, which can be compared, and adopted if it matches the recipe; the one created under
    this name and renamed since.
    """
    found = containers.inspect(context.docker(), name) or {}
    mine = found and (
        container_labels.in_place(context, found) or found["Id"] in container_labels.of_server(context.state)
    )
    if mine or name.endswith(containers.INTERIM):
        return found
    known = next((server for server in _known(context) if not container_labels.kept(context, server)), {})
    return known or _attempt(context) or found or _renamed(context, name)


def kept(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect of the server that was stopped for it and kept, of whatever recipe; empty if there is none."""
    found = containers.inspect(context.docker(), name + containers.PREVIOUS) or {}
    if found and container_labels.kept(context, found) and _is_of(context, found, name):
        return found
    return next((server for server in _known(context) if container_labels.kept(context, server)), {})


def never_started(context: Context) -> dict[str, str]:
    """Return the ids of the containers that were created to replace a server and never started, by name.

    Of the run that works on this host, or left by one that was cut off: its recipe may have named another server.
    """
    return {name_of(found): str(found["Id"]) for found in container_labels.all_never_started(context)}


def discard_created(context: Context) -> None:
    """Remove the container that this run created to replace the server and did not start."""
    if context.created is None:
        return
    try:
        lifecycle.discard(context, context.created.id)
    except Exception as error:  # of docker, requests or this package: the next deploy removes it
        context.note(f"{context.created.spec.name}{containers.REPLACEMENT} is left: {error}")
    context.created = None


def refuse_others(context: Context, name: str, *, adopts: bool = False) -> None:
    """Raise Refused if a container that is not this server's has a name that the replacement needs.

    Args:
        name: of the recipe's container.
        adopts: a container with this very name may stay: it matches the recipe, and is adopted as it runs.
    """
    found = current(context, name)
    mine = bool(found) and _is_of(context, found, name)
    if mine and _wrongly_named(context, found, name):
        taken = containers.inspect(context.docker(), name)
        first = f"docker rename {name} {name}-kept && " if taken else ""
        fix = f"On the host: `{first}docker rename {name_of(found)} {name}`."
        raise Refused(f"container {container_labels.holder(context, found)}.", fix=fix)
    stays = mine or (adopts and not container_labels.ours(context, found))
    known = {found.get("Id") if stays else None, kept(context, name).get("Id"), *never_started(context).values()}
    for needed in (name, name + containers.PREVIOUS, name + containers.REPLACEMENT):
        held = containers.inspect(context.docker(), needed)
        if held is not None and held["Id"] not in known:
            why = f"container {container_labels.holder(context, held)}, and this server needs its name."
            raise Refused(why, fix=container_labels.to_free(held))


def name_of(container: dict[str, Any]) -> str:
    """Return a container's present name."""
    return container_labels.name_of(container)


def _is_of(context: Context, container: dict[str, Any], name: str) -> bool:
    """Return True if a container is this server's: created for it, or in its records."""
    found = container_labels.identify(context, container)
    return container["Id"] in container_labels.of_server(context.state) or (found is not None and found.server == name)


def _wrongly_named(context: Context, container: dict[str, Any], name: str) -> bool:
    """Return True if this very server has been renamed since it was created."""
    found = container_labels.identify(context, container)
    return found is not None and found.name == name != name_of(container)


def _known(context: Context) -> Iterator[dict[str, Any]]:
    """Yield the last verified server, and the one that a run recorded before stopping it, if they exist."""
    ids = (good_states.last(context.state).get("container_id"), (context.state.read("previous") or {}).get("id"))
    yield from filter(None, (_found(context, id_) for id_ in ids))


def _attempt(context: Context) -> dict[str, Any]:
    """Return the server that an interrupted run started in place of the one that it stopped."""
    found = _found(context, (context.state.read("previous") or {}).get("attempt"))
    return found if container_labels.ours(context, found) else {}


def _renamed(context: Context, name: str) -> dict[str, Any]:
    """Return the server created under this name and renamed since; empty if there is none, or while it is kept."""
    servers = container_labels.by_label(context, container_labels.SERVER, name)
    apart = (container_labels.kept, container_labels.never_started)
    return next((server for server in servers if not any(is_apart(context, server) for is_apart in apart)), {})


def _found(context: Context, id_: object) -> dict[str, Any]:
    """Return the inspect of a container named in a record, by name or id; empty if it is gone, or not a valid name."""
    if not isinstance(id_, str) or not STEP.fullmatch(id_):
        return {}
    return containers.inspect(context.docker(), id_) or {}

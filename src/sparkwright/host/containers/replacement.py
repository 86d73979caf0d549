"""The container that a recipe's server replaces.

A recipe names its container. When a host switches to another recipe, its current server, the last verified one, has a
different name. That server is compared, drained, stopped, kept and restored as if it had the new recipe's name
(docs/decisions/0034-another-recipe.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.containers import containers, lifecycle, ownership
from sparkwright.host.module import Context
from sparkwright.host.records import stopped_server, verified_states
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust.names import PATH_COMPONENT


@dataclass(frozen=True, slots=True)
class CreatedContainer:
    """A container that this run created to replace the server, and has not started yet."""

    id: str
    spec: ContainerSpec


def find_current(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect data of the server that a recipe with this container name replaces; empty if there is none.

    The candidates are, in this order: our container with this name; the last verified server; the server that an interrupted run
    started in its place; a foreign container with this name, which is adopted if it matches the recipe; and a server that was
    created with this name and has been renamed since.
    """
    container = containers.inspect(context.docker(), name) or {}
    is_own = container and (
        ownership.has_original_name(context, container) or container["Id"] in ownership.recorded_ids(context.state)
    )
    if is_own or name.endswith(containers.INTERIM_SUFFIX):
        return container
    recorded_server = next(
        (server for server in _iter_recorded(context) if not ownership.is_kept_previous(context, server)), {}
    )
    return recorded_server or _find_attempt(context) or container or _find_renamed(context, name)


def find_kept(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect data of the server that was stopped and kept for a rollback, of any recipe; empty if there is none."""
    container = containers.inspect(context.docker(), name + containers.PREVIOUS_SUFFIX) or {}
    if container and ownership.is_kept_previous(context, container) and _is_server(context, container, name):
        return container
    return next((server for server in _iter_recorded(context) if ownership.is_kept_previous(context, server)), {})


def unstarted_ids(context: Context) -> dict[str, str]:
    """Return the ids of the containers that were created to replace a server and never started, by name.

    They belong to the current run or to an interrupted one, whose recipe may have named another server.
    """
    replacements = ownership.list_unstarted_replacements(context)
    return {containers.name_of(container): str(container["Id"]) for container in replacements}


def discard_created(context: Context) -> None:
    """Remove the container that this run created to replace the server and did not start."""
    if context.created_container is None:
        return
    try:
        lifecycle.force_remove(context, context.created_container.id)
    except Exception as error:  # raised by docker, requests or this package; the next deploy removes the container
        context.note(
            f"{context.created_container.spec.name}{containers.REPLACEMENT_SUFFIX} could not be removed: {error}"
        )
    context.created_container = None


def require_free_names(context: Context, name: str) -> None:
    """Raise Refused if a container that is not this server's has a name that the replacement needs.

    name: the recipe's container name.
    """
    server = find_current(context, name)
    is_own = bool(server) and _is_server(context, server, name)
    if is_own and _is_renamed(context, server, name):
        name_holder = containers.inspect(context.docker(), name)
        prefix = f"docker rename {name} {name}-kept && " if name_holder else ""
        fix = f"On the host: `{prefix}docker rename {containers.name_of(server)} {name}`."
        raise Refused(f"container {ownership.describe_holder(context, server)}.", fix=fix)
    allowed_ids = {
        server.get("Id") if is_own else None,
        find_kept(context, name).get("Id"),
        *unstarted_ids(context).values(),
    }
    for needed_name in (name, name + containers.PREVIOUS_SUFFIX, name + containers.REPLACEMENT_SUFFIX):
        holder = containers.inspect(context.docker(), needed_name)
        if holder is not None and holder["Id"] not in allowed_ids:
            message = f"container {ownership.describe_holder(context, holder)}, and this server needs its name."
            raise Refused(message, fix=ownership.fix_to_free_name(holder))


def _is_server(context: Context, container: dict[str, Any], name: str) -> bool:
    """Return True if a container was created for this server, or is in its records."""
    identity = ownership.identify(context, container)
    return container["Id"] in ownership.recorded_ids(context.state) or (
        identity is not None and identity.server == name
    )


def _is_renamed(context: Context, container: dict[str, Any], name: str) -> bool:
    """Return True if a container was created with this name and has been renamed since."""
    identity = ownership.identify(context, container)
    return identity is not None and identity.name == name != containers.name_of(container)


def _iter_recorded(context: Context) -> Iterator[dict[str, Any]]:
    """Yield the last verified server, and the one that a run recorded before stopping it, if they exist."""
    previous = stopped_server.load(context.state)
    ids = (verified_states.load_last(context.state).container_id, previous.get("id"))
    yield from filter(None, (_inspect_recorded(context, id_) for id_ in ids))


def _find_attempt(context: Context) -> dict[str, Any]:
    """Return the server that an interrupted run started in place of the one that it stopped."""
    container = _inspect_recorded(context, stopped_server.load(context.state).get("attempt"))
    return container if ownership.is_ours(context, container) else {}


def _find_renamed(context: Context, name: str) -> dict[str, Any]:
    """Return the server created with this name and renamed since, unless it is kept or unstarted; empty if there is none."""
    servers = ownership.list_by_label(context, ownership.SERVER, name)
    exclusions = (ownership.is_kept_previous, ownership.is_unstarted_replacement)
    return next(
        (server for server in servers if not any(is_excluded(context, server) for is_excluded in exclusions)), {}
    )


def _inspect_recorded(context: Context, container_id: object) -> dict[str, Any]:
    """Return the inspect data of a container named in a record, by name or id; empty if it is gone or the name is invalid."""
    if not isinstance(container_id, str) or not PATH_COMPONENT.fullmatch(container_id):
        return {}
    return containers.inspect(context.docker(), container_id) or {}

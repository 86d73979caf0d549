"""The containers that a run finds in the place that a recipe's server is to have.

A recipe names its container. When a host is to serve another recipe, the server that is there has another name: it is the one
that was verified here last. It is compared, drained, stopped, kept and restored as if it had the recipe's name
(docs/decisions/0034-another-recipe.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.containers import containers, ownership
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.trust.names import STEP


def current(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect of the server that a recipe with this container's name finds; empty when there is none.

    It is ours of this name; else the last verified one; else what an interrupted run had started in its place; else the one that
    was created under this name and is called otherwise now. A container of this name that is not ours is found where there is
    none of these: it can be compared, and taken over where it is what the recipe says.
    """
    found = containers.inspect(context.docker(), name) or {}
    mine = found and (ownership.in_place(context, found) or found["Id"] in ownership.of_server(context.state))
    if mine or name.endswith(containers.INTERIM):
        return found
    known = next((server for server in _known(context) if not ownership.kept(context, server)), {})
    return known or _attempt(context) or found or _renamed(context, name)


def kept(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect of the server that was stopped for it and kept, whatever its recipe; empty when there is none."""
    found = containers.inspect(context.docker(), name + containers.PREVIOUS) or {}
    if found and ownership.kept(context, found) and _is_of(context, found, name):
        return found
    return next((server for server in _known(context) if ownership.kept(context, server)), {})


def refuse_others(context: Context, name: str, *, adopts: bool = False) -> None:
    """Raise Refused where a container that is not this server's has a name that its replacement takes.

    Args:
        name: of the recipe's container.
        adopts: one that has this very name may stay: it is what the recipe says, and is taken over as it runs.
    """
    found = current(context, name)
    mine = bool(found) and _is_of(context, found, name)
    if mine and _wrongly_named(context, found, name):
        taken = containers.inspect(context.docker(), name)
        first = f"docker rename {name} {name}-kept && " if taken else ""
        fix = f"On the host: `{first}docker rename {name_of(found)} {name}`."
        raise Refused(f"container {ownership.holder(context, found)}.", fix=fix)
    stays = mine or (adopts and not ownership.ours(context, found))
    known = {found.get("Id") if stays else None, kept(context, name).get("Id")}
    for needed in (name, name + containers.PREVIOUS):
        held = containers.inspect(context.docker(), needed)
        if held is not None and held["Id"] not in known:
            why = f"container {ownership.holder(context, held)}, and this server needs its name."
            raise Refused(why, fix=ownership.to_free(held))


def name_of(container: dict[str, Any]) -> str:
    """Return a container's present name."""
    return ownership.name_of(container)


def _is_of(context: Context, container: dict[str, Any], name: str) -> bool:
    """Return whether a container is this server's: created for it, or known to its memory."""
    found = ownership.identify(context, container)
    return container["Id"] in ownership.of_server(context.state) or (found is not None and found.server == name)


def _wrongly_named(context: Context, container: dict[str, Any], name: str) -> bool:
    """Return whether this very server has another name than the one that it was created with."""
    found = ownership.identify(context, container)
    return found is not None and found.name == name != name_of(container)


def _known(context: Context) -> Iterator[dict[str, Any]]:
    """Yield the last verified server, and the one that a run wrote down before it stopped it, as far as they are there."""
    ids = (good_states.last(context.state).get("container_id"), (context.state.read("previous") or {}).get("id"))
    yield from filter(None, (_found(context, history) for history in ids))


def _attempt(context: Context) -> dict[str, Any]:
    """Return the server that an interrupted run had started in the place of the one that it stopped."""
    found = _found(context, (context.state.read("previous") or {}).get("attempt"))
    return found if ownership.ours(context, found) else {}


def _renamed(context: Context, name: str) -> dict[str, Any]:
    """Return the server that was created under this name and has another one now; empty for none, and while it is kept."""
    created = ownership.by_label(context, ownership.SERVER, name)
    return next((server for server in created if not ownership.kept(context, server)), {})


def _found(context: Context, history: object) -> dict[str, Any]:
    """Return the inspect of a container by its name or id in a file of the host; empty for one that is gone, or no name."""
    if not isinstance(history, str) or not STEP.fullmatch(history):
        return {}
    return containers.inspect(context.docker(), history) or {}

"""Which container a run finds in the place that a recipe's server is to have.

A recipe names its container. When a host is to serve another recipe, the server that is there has another name: it is the one
that was verified here last. It is compared, drained, stopped, kept and restored as if it had the recipe's name
(docs/decisions/0034-another-recipe.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.host.containers import containers
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.trust.names import STEP


def current(context: Context, name: str) -> dict[str, Any]:
    """The inspect of the server that a recipe with this container's name finds; empty when there is none.

    It is the container of this name; else the last verified one; else what an interrupted run had started in its place.
    """
    found = containers.inspect(context.docker(), name)
    if found is not None or name.endswith(containers.INTERIM):
        return found or {}
    attempt = (context.state.read("previous") or {}).get("attempt")
    return next((one for one in _known(context) if not _is_kept(one)), _found(context, attempt))


def kept(context: Context, name: str) -> dict[str, Any]:
    """The inspect of the server that was stopped for it and kept, whatever its recipe; empty when there is none."""
    found = containers.inspect(context.docker(), name + containers.PREVIOUS)
    return found or next(filter(_is_kept, _known(context)), {})


def name_of(container: dict[str, Any]) -> str:
    """What a container is called, from its inspect."""
    return str(container["Name"]).lstrip("/")


def _known(context: Context) -> Iterator[dict[str, Any]]:
    """What is there of the last verified server, and of the one that a run wrote down before it stopped it."""
    ids = (good_states.last(context.state).get("container_id"), (context.state.read("previous") or {}).get("id"))
    yield from filter(None, (_found(context, one) for one in ids))


def _found(context: Context, remembered: object) -> dict[str, Any]:
    """The inspect of a container by what a file of the host calls it; empty for what is there no more, or is no name."""
    if not isinstance(remembered, str) or not STEP.fullmatch(remembered):
        return {}
    return containers.inspect(context.docker(), remembered) or {}


def _is_kept(container: dict[str, Any]) -> bool:
    return name_of(container).endswith(containers.PREVIOUS)

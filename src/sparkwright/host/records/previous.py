"""The state "previous": a server as it was before a run changed its restart policy and stopped it.

Written before the first step of a replacement, so that the server can be restored wherever the run is cut off.
"""

from __future__ import annotations

from typing import Any

from sparkwright.host.containers import containers
from sparkwright.host.module import Context
from sparkwright.host.records import good_states


def stop_and_keep(context: Context, container: dict[str, Any], attempt: str) -> None:
    """Record a server that is about to be stopped for its replacement.

    Args:
        attempt: the name of the new container.
    """
    _write(context, container, {"attempt": attempt})


def restarted(context: Context, container: dict[str, Any]) -> None:
    """Record a server that is about to be restarted. A verified one is recorded as running, even if it is stopped."""
    verified = container["Id"] == good_states.last(context.state).get("container_id")
    _write(context, container, {"running": True} if verified else {})


def _write(context: Context, container: dict[str, Any], more: dict[str, Any]) -> None:
    known, good = context.state.read("previous") or {}, good_states.last(context.state)
    now = containers.identity(container)
    if now["policy"] == "no" and now["id"] == good.get("container_id"):  # removed since it was verified with one
        now["policy"] = good["spec"]["restart"]
    if known.get("id") == container["Id"]:  # a run that was cut off had begun to change these: its record is right
        now = {key: known.get(key, value) for key, value in now.items()}
    context.state.write("previous", {**now, **more, "run": context.run_id})

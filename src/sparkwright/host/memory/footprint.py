"""A server's share of the memory: recorded when it was verified, compared after it was stopped.

State "before_start": MemAvailable before the engine allocated its memory, and whether an interim server of the same size ran
beside it. "stopping": MemAvailable before the server was stopped, and the memory it held.
"""

from __future__ import annotations

import time
from typing import Any

from sparkwright.host.module import Context

#: see host/gateway/interim.py
INTERIM = "interim"


def before_start(context: Context, available_bytes: int) -> None:
    """Record the available memory before anything is started."""
    beside_interim = context.state.read(INTERIM) is not None
    context.state.write(
        "before_start", {"available_bytes": available_bytes, "beside_interim": beside_interim, "run": context.run_id}
    )


def available_before(context: Context) -> int | None:
    """Return MemAvailable before this run started its server, bytes; None if that was not recorded."""
    before = context.state.read("before_start") or {}
    return int(before["available_bytes"]) if before.get("run") == context.run_id else None


def held_now(context: Context) -> int | None:
    """Return the bytes that the server allocated since `before_start` of this run; None if that was not recorded."""
    before = available_before(context)
    held = (before or 0) - context.machine.meminfo()["MemAvailable"]
    return held if before is not None and held > 0 else None


def before_stop(context: Context, container: dict[str, Any]) -> None:
    """Record the available memory and this container's known share before it is stopped.

    If it is stopped already, keep the record of the run that stopped it.
    """
    stopped = stopping(context)
    if container["State"]["Running"]:
        available = context.machine.meminfo()["MemAvailable"]
        row = {"id": container["Id"], "available_bytes": available, "since": time.time()}
        held = _still_held(context, recorded(context, container["Id"]), available)
        context.state.write("stopping", {**row, "held_bytes": held, "run": context.run_id})
    elif stopped.get("id") == container["Id"]:
        context.state.write("stopping", {**stopped, "run": context.run_id})
    else:
        context.state.remove("stopping")


def _still_held(context: Context, held: int | None, available: int) -> int | None:
    """Return the recorded bytes of a server, at most those that can be in use now: it may have exited or still be starting."""
    before = context.state.read("before_start") or {}
    if held is None or before.get("available_bytes") is None:
        return held
    interim_left = before.get("beside_interim") and context.state.read(INTERIM) is None
    room = int(before["available_bytes"]) + (held if interim_left else 0)
    return max(0, min(held, room - available))


def stopping(context: Context) -> dict[str, Any]:
    """Return the record of the last stop: id, available_bytes, held_bytes (None: unknown), run. Empty without one."""
    return context.state.read("stopping") or {}


def stopped_now(context: Context) -> dict[str, Any]:
    """Return the record of the last stop if this run stopped the server (or resumed a run that did)."""
    found = stopping(context)
    return found if found.get("run") == context.run_id else {}


def recorded(context: Context, container_id: str) -> int | None:
    """Return the bytes that a container held when it was verified; None if that was not recorded."""
    for state in context.state.servers():
        good = state.read("verified") or {}
        if good.get("container_id") == container_id and good.get("held_bytes"):
            return int(good["held_bytes"])
    return None

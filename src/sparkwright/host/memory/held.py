"""The memory that a server releases when it stops."""

from __future__ import annotations

import time

from sparkwright.host.containers import containers
from sparkwright.host.memory import footprint, holders
from sparkwright.host.module import Context

#: the memory of a server that exited by itself is released a little after its process
RELEASE_S = 10.0


def of_server(name: str, context: Context) -> int | None:
    """Return the bytes that a container releases when it stops, or is releasing now.

    0 if it exited long ago; None if unknown.
    """
    found = containers.inspect(context.docker(), name)
    if found is None:
        return 0
    running, exited_s = found["State"]["Running"], containers.moment(str(found["State"].get("FinishedAt") or ""))
    if not running and (exited_s is None or time.time() - exited_s > RELEASE_S):
        return 0
    recorded = footprint.recorded(context, found["Id"])
    if recorded is not None:
        return recorded
    return holders.of_container(context, found["Id"]) if running else None

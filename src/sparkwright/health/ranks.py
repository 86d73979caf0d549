"""The observation of this host's rank of a cluster: as it was deployed, and as its container's log proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.health.check_history import CheckHistory
from sparkwright.health.record import Container, Rank
from sparkwright.host.cluster import rank
from sparkwright.host.containers import container_labels, containers, engine_socket
from sparkwright.host.module import Context
from sparkwright.units import MIB

#: limits of reading a log: the group is in its first 100 kB, the reason of an exit in its last lines
LOG_BYTES, LOG_S = 8 * MIB, 5.0


def deployed(good: Mapping[str, Any]) -> Rank:
    """Return the rank that the last verified state was deployed as; for a server of its own one without a cluster's name."""
    place = container_labels.membership_of_labels((good.get("spec") or {}).get("labels"))
    return Rank(place.cluster, place.rank, len(place.members)) if place.cluster else Rank()


def now(context: Context, good: Mapping[str, Any], box: Container, past: CheckHistory, start: str) -> Rank:
    """Return the observed state of the rank that this host was deployed as. box: its container now. start: see `probe`."""
    wanted = deployed(good)
    if not wanted.cluster or box.status in ("", "absent"):
        return wanted
    try:
        inspected = containers.inspect(context.docker(), box.name) or {}
        return probe(context, wanted, box, inspected, past, start)
    except SparkwrightError as error:
        return replace(wanted, error=error.message.rstrip("."))
    except Exception as error:  # docker's own and requests': an engine that hangs or answers nonsense
        return replace(wanted, error=engine_socket.silent(error))


def probe(
    context: Context, wanted: Rank, box: Container, inspected: Mapping[str, Any], past: CheckHistory, start: str
) -> Rank:
    """Return the observed state of a member's rank. start: identifies this start of its container.

    A place in the group lasts as long as the process: once proved, the log of that start is not read again.
    """
    if not wanted.cluster or not inspected:
        return wanted
    if box.status == "running" and past.joined.get("start") == start:
        group = past.joined
        return replace(wanted, group_rank=group["rank"], group_world=group["world"], transport=group["transport"])
    try:
        found = rank.of_log(context.docker(), inspected, most_bytes=LOG_BYTES, most_s=LOG_S)
    except Failed as error:
        return replace(wanted, error=error.message.rstrip("."))
    if box.status == "running" and found.rank is not None and found.world_size is not None:
        group = {"rank": found.rank, "world": found.world_size, "transport": found.transport}
        past.joined = {"start": start, **group}
    return replace(
        wanted,
        group_rank=found.rank,
        group_world=found.world_size,
        transport=found.transport,
        stage=found.stage,
        failure=found.failure,
    )

"""A member's rank: what its container's log proves of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Failed
from sparkwright.host.containers import engine_of
from sparkwright.host.containers.log_reading import MOST_BYTES, MOST_S, StartLog
from sparkwright.protocol.container import RANK_LABEL

if TYPE_CHECKING:
    import docker

    from sparkwright.engines.parallel import MemberLog


def of_log(
    client: docker.DockerClient, inspect: Mapping[str, Any], *, most_bytes: int = MOST_BYTES, most_s: float = MOST_S
) -> MemberLog:
    """What the log of a member's container says of its last start. most_bytes, most_s: see StartLog.

    Raises Failed for a container that is no member's, and for a log that can't be read.
    """
    name = str(inspect["Name"]).lstrip("/")
    member = engine_of.of_container(dict(inspect)).member
    if member is None or RANK_LABEL not in (inspect["Config"].get("Labels") or {}):
        raise Failed(f"container {name} is not a member of a cluster.")
    return member(StartLog(client, name, most_bytes, most_s))

"""The state of a member's rank, from its container's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Failed
from sparkwright.host.containers import container_labels, containers
from sparkwright.host.containers.log_reader import MOST_BYTES, MOST_S, StartLog
from sparkwright.protocol.container import RANK_LABEL

if TYPE_CHECKING:
    import docker

    from sparkwright.engines.parallel import MemberLog


@dataclass(frozen=True, slots=True)
class End:
    """The end of a member's rank."""

    #: ended by itself, not because of another rank
    own: bool
    #: a sentence
    why: str


def ended(client: docker.DockerClient, name: str, rank: int, *, log: bool) -> End | None:
    """Return how the rank in this container ended, or None if it has not.

    Args:
        log: also read the log of a running container, for a failure that it reports.
    """
    inspect = containers.inspect(client, name)
    running = bool(inspect and inspect["State"]["Running"])
    if not inspect or (running and not log):
        return None if inspect else End(own=True, why=f"rank {rank} ended: there is no container {name}.")
    found, state = of_log(client, inspect), inspect["State"]
    if running and not found.failure:
        return None
    code = "OOM-killed" if state.get("OOMKilled") else f"exit code {state['ExitCode']}"
    how = "fails" if running else f"exited ({code})"
    parallel = container_labels.engine_of_container(dict(inspect)).parallel
    own = not (parallel and parallel.of_another(found.failure)) and bool(found.failure or state["ExitCode"])
    return End(own, f"rank {rank} {how}: {found.failure or 'no known reason in its log.'}")


def of_log(
    client: docker.DockerClient, inspect: Mapping[str, Any], *, most_bytes: int = MOST_BYTES, most_s: float = MOST_S
) -> MemberLog:
    """Read the log of a member's container since its last start.

    Args:
        most_bytes, most_s: see StartLog.

    Raises:
        Failed: The container is not a member of a cluster, or its log cannot be read.
    """
    name = str(inspect["Name"]).lstrip("/")
    member = container_labels.engine_of_container(dict(inspect)).member
    if member is None or RANK_LABEL not in (inspect["Config"].get("Labels") or {}):
        raise Failed(f"container {name} is not a member of a cluster.")
    return member(StartLog(client, name, most_bytes, most_s))

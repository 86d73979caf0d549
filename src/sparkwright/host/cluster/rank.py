"""The state of a member's rank, from its container and its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Failed
from sparkwright.host.containers import container_labels, containers
from sparkwright.host.containers.log_reader import MAX_BYTES, MAX_READ_S, StartLog
from sparkwright.protocol.container import RANK_LABEL

if TYPE_CHECKING:
    import docker

    from sparkwright.engines.parallel import MemberLog


@dataclass(frozen=True, slots=True)
class RankExit:
    """The exit or failure of a member's rank."""

    #: False if another rank's failure may have caused it
    is_cause: bool
    #: message for the user
    message: str


def find_exit(client: docker.DockerClient, name: str, rank: int, *, read_log: bool) -> RankExit | None:
    """Return how the rank in this container exited; None if it is running.

    Args:
        read_log: also look for a failure in the log of a running container.
    """
    inspected = containers.inspect(client, name)
    is_running = bool(inspected and inspected["State"]["Running"])
    if not inspected or (is_running and not read_log):
        return (
            None if inspected else RankExit(is_cause=True, message=f"rank {rank} ended: there is no container {name}.")
        )
    member_log, state = read_member_log(client, inspected), inspected["State"]
    if is_running and not member_log.failure:
        return None
    exit_text = "OOM-killed" if state.get("OOMKilled") else f"exit code {state['ExitCode']}"
    outcome = "failed" if is_running else f"exited ({exit_text})"
    parallel = container_labels.engine_of_container(dict(inspected)).parallel
    is_cause = not (parallel and parallel.is_peer_failure(member_log.failure)) and bool(
        member_log.failure or state["ExitCode"]
    )
    return RankExit(is_cause, f"rank {rank} {outcome}: {member_log.failure or 'no known reason in its log.'}")


def read_member_log(
    client: docker.DockerClient, inspected: Mapping[str, Any], *, max_bytes: int = MAX_BYTES, max_s: float = MAX_READ_S
) -> MemberLog:
    """Read the log of a member's container since its last start.

    Raises:
        Failed: The container is not a member of a cluster, or its log cannot be read.
    """
    name = containers.name_of(inspected)
    build_member_log = container_labels.engine_of_container(dict(inspected)).parse_member_log
    if build_member_log is None or RANK_LABEL not in (inspected["Config"].get("Labels") or {}):
        raise Failed(f"container {name} is not a member of a cluster.")
    return build_member_log(StartLog(client, name, max_bytes, max_s))

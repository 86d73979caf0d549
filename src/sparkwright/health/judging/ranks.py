"""Questions about a member of a cluster: is its rank running, has it joined its group, and is it as deployed?

A member's container has no restart policy, and a group that has lost a rank never accepts a new one, so only a restart of all
members helps.
"""

from __future__ import annotations

from sparkwright import units
from sparkwright.health.judging.observation import Observation
from sparkwright.health.record import Container, Cure, Level, State
from sparkwright.protocol import cluster

#: an answer's level, message, state (default: ok) and cure (default: none)
DefiniteAnswer = tuple[Level, str] | tuple[Level, str, State] | tuple[Level, str, State, Cure]
#: an answer, or None if the question does not apply
Answer = DefiniteAnswer | None

#: appended to the head's message if the server generates nothing: the cause may be on another host
LOST_RANK_HINT = ": a rank of its cluster is gone or hung"
#: number of restarts after which a server that does not answer counts as crash-looping, even in a single check
MIN_LOOP_RESTARTS = 2
#: uptime of a container after which Docker resets its delay between restarts, in seconds
BACKOFF_RESET_S = 10.0


def check_stopped_rank(observation: Observation) -> Answer:
    """Evaluate a member whose container is not running."""
    container, rank = observation.container, observation.rank
    reason = rank.failure.rstrip(".") or ("its host was restarted" if _was_host_restarted(observation) else "")
    message = (
        f"rank {rank.rank} of {rank.cluster} ({container.name}) {container.status} (exit code {container.exit_code})"
    )
    if observation.stopping_run:
        # a rank that failed by itself is stopped with the others of its cluster
        cause = f": {rank.failure.rstrip('.')}; its cluster was" if rank.failure else ","
        return "bad", f"{message}{cause} stopped by sparkwright (run {observation.stopping_run})", "down", "person"
    if rank.rank == 0 and not container.exit_code and not reason:
        return "bad", f"{message}, finished or stopped by hand", "down", "person"
    return "bad", f"{message}{f': {reason}' if reason else ', while in service'}", "down", "restart"


def check_running_rank(observation: Observation, start_limit_s: float) -> Answer:
    """Evaluate a member whose container is running. start_limit_s: how long a start may take."""
    container, rank = observation.container, observation.rank
    if observation.active_run or not rank.cluster or rank.rank is None or container.status != "running":
        return None
    if rank.error:
        return "unknown", f"cannot determine the place of rank {rank.rank} in its group: {rank.error}", "unknown"
    if rank.group_rank is None:
        return _check_unjoined_rank(observation, start_limit_s)
    if placement_error := cluster.describe_wrong_rank(rank.group_rank, rank.group_world, rank.rank, rank.world):
        return "bad", placement_error.rstrip("."), "down", "deploy"
    if rank.transport == "sockets":
        return "bad", cluster.describe_socket_traffic(rank.rank).rstrip("."), "degraded", "person"
    if not container.verified:
        return "bad", f"rank {rank.rank} was not started by the verified deploy", "degraded", "deploy"
    return "ok", describe_joined_rank(observation)


def describe_joined_rank(observation: Observation) -> str:
    """Describe a healthy rank. Its log proves that it joined; only a token proves that the other ranks are still running."""
    rank = observation.rank
    transport = f", over {rank.transport}" if rank.transport not in ("", "unknown") else ""
    return (
        f"rank {rank.group_rank} of {rank.group_world} is running and has joined the group of {rank.cluster}{transport}"
    )


def _check_unjoined_rank(observation: Observation, start_limit_s: float) -> Answer:
    """Evaluate a rank that is running but has not joined its group."""
    container, rank = observation.container, observation.rank
    message = f"rank {rank.rank} has not joined the group of {rank.cluster}"
    stage = f"; the last stage in its log: {rank.stage}" if rank.stage else ""
    if container.started_s is None:
        return "unknown", f"{message}, and its start time is unknown{stage}", "unknown"
    age_s = max(0.0, observation.time_s - container.started_s)
    if age_s <= start_limit_s:
        return "warn", f"{message}, starting for {age_s:.0f} s (up to {start_limit_s:.0f} s){stage}", "starting"
    return "bad", f"{message} after {age_s:.0f} s{stage}", "down", "restart"


def _was_host_restarted(observation: Observation) -> bool:
    """Return True if the container exited before the host's last boot."""
    finished_s, uptime_s = observation.container.finished_s, observation.machine.uptime_s
    return finished_s is not None and uptime_s is not None and finished_s < observation.time_s - uptime_s


def is_crash_loop(container: Container, now_s: float) -> bool:
    """Return True if a server that does not answer is clearly in a crash loop, so that a single check is enough."""
    age_s = now_s - container.started_s if container.status == "running" and container.started_s is not None else 0.0
    return (container.restarts or 0) >= MIN_LOOP_RESTARTS and age_s <= BACKOFF_RESET_S


def restarted_state(container: Container, now_s: float) -> State:
    """Return the state of a server that was restarted by Docker and does not answer yet: crash-looping or down."""
    return "crash-looping" if is_crash_loop(container, now_s) else "down"


def describe_exit(container: Container, now_s: float) -> str:
    """Return text like "qwen35 exited with code 1 4 s ago". After a restart Docker no longer reports the code."""
    code = f" with code {container.exit_code}" if container.exit_code is not None else ""
    return f"{container.name} exited{code}{format_exit_age(container, now_s)}"


def format_exit_age(container: Container, now_s: float) -> str:
    """Return text like " 4 s ago", with a leading space; empty if the time of the exit is unknown."""
    return (
        f" {units.format_rough_duration(now_s - container.finished_s)} ago" if container.finished_s is not None else ""
    )


def describe_restarts(container: Container, now_s: float) -> str:
    """Return text like "qwen35 exited 4 s ago, restarted 2 times"."""
    count = "once" if container.restarts == 1 else f"{container.restarts} times"
    return f"{describe_exit(container, now_s)}, restarted {count}"

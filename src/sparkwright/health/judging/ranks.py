"""The questions about a member of a cluster: whether its rank runs, in its group, as deployed.

A member's container has no restart policy, and a group that lost a rank never accepts a new one, so only a restart of all
members helps. The functions have no side effects.
"""

from __future__ import annotations

from sparkwright import units
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Container, Cure, Level, State
from sparkwright.protocol import cluster

Answer = tuple[Level, str] | tuple[Level, str, State] | tuple[Level, str, State, Cure] | None

#: appended to the head's evidence for a server that generates nothing, because the cause may be a host that it can't see
RANK_GONE = ": a rank of its cluster is gone or hung"


def check_ended(observed: Observation) -> Answer:
    """Evaluate a member whose container is not running."""
    container, rank = observed.container, observed.rank
    why = rank.failure.rstrip(".") or ("its host was restarted" if _is_host_restart(observed) else "")
    message = (
        f"rank {rank.rank} of {rank.cluster} ({container.name}) {container.status} (exit code {container.exit_code})"
    )
    if observed.stopped:
        return "bad", f"{message}, stopped by sparkwright (run {observed.stopped})", "down", "person"
    if rank.rank == 0 and not container.exit_code and not why:
        return "bad", f"{message}, finished or stopped by hand", "down", "person"
    return "bad", f"{message}{f': {why}' if why else ', while in service'}", "down", "restart"


def check_running(observed: Observation, limits: Limits, start_limit_s: float) -> Answer:
    """Evaluate a member whose container is running. start_limit_s: how long a start may take."""
    container, rank = observed.container, observed.rank
    if observed.busy or not rank.cluster or rank.rank is None or container.status != "running":
        return None
    if rank.error:
        return "unknown", f"the place of rank {rank.rank} in its group: {rank.error}", "unknown"
    if rank.group_rank is None:
        return _check_unjoined(observed, start_limit_s)
    if misplaced := cluster.describe_wrong_rank(rank.group_rank, rank.group_world, rank.rank, rank.world):
        return "bad", misplaced.rstrip("."), "down", "deploy"
    if rank.transport == "sockets":
        return "bad", cluster.describe_socket_traffic(rank.rank).rstrip("."), "degraded", "person"
    if not container.verified:
        return "bad", f"rank {rank.rank} was not started by the deploy that was verified", "degraded", "deploy"
    return "ok", describe_place(observed)


def describe_place(observed: Observation) -> str:
    """Describe the place of a healthy rank.

    Its log proves that it joined, but only a token proves that the others are still there.
    """
    rank = observed.rank
    transport = f", over {rank.transport}" if rank.transport not in ("", "unknown") else ""
    return f"rank {rank.group_rank} of {rank.group_world} runs, and joined the group of {rank.cluster}{transport}"


def _check_unjoined(observed: Observation, start_limit_s: float) -> Answer:
    """Evaluate a rank that is running but has not joined its group."""
    container, rank = observed.container, observed.rank
    message = f"rank {rank.rank} has not joined the group of {rank.cluster}"
    stage = f"; the last stage in its log: {rank.stage}" if rank.stage else ""
    if container.started_s is None:
        return "unknown", f"{message}, and its start time is unknown{stage}", "unknown"
    age_s = max(0.0, observed.time_s - container.started_s)
    if age_s <= start_limit_s:
        return "warn", f"{message}, starting for {age_s:.0f} s (up to {start_limit_s:.0f} s){stage}", "starting"
    return "bad", f"{message} after {age_s:.0f} s{stage}", "down", "restart"


def _is_host_restart(observed: Observation) -> bool:
    """Return True if the container exited before the host's last boot."""
    ended_s, uptime_s = observed.container.finished_s, observed.machine.uptime_s
    return ended_s is not None and uptime_s is not None and ended_s < observed.time_s - uptime_s


#: number of restarts without an answer that count as a loop, even at the first check
MIN_LOOP_RESTARTS = 2
#: how long a container has to run until Docker resets its delay between restarts, in seconds
BACKOFF_RESET_S = 10.0


def is_crash_loop(container: Container, now_s: float) -> bool:
    """Return True if a server that does not answer is in a crash loop, as far as a single check can tell."""
    age_s = now_s - container.started_s if container.status == "running" and container.started_s is not None else 0.0
    return (container.restarts or 0) >= MIN_LOOP_RESTARTS and age_s <= BACKOFF_RESET_S


def restarted_state(container: Container, now_s: float) -> State:
    """Return the state of a server that Docker restarted and that does not answer yet."""
    return "crash-looping" if is_crash_loop(container, now_s) else "down"


def describe_exit(container: Container, now_s: float) -> str:
    """Return a sentence like "qwen35 exited with code 1 4 s ago". After a restart Docker no longer reports the code."""
    code = f" with code {container.exit_code}" if container.exit_code is not None else ""
    when = (
        f" {units.format_rough_duration(now_s - container.finished_s)} ago" if container.finished_s is not None else ""
    )
    return f"{container.name} exited{code}{when}"


def describe_restarts(container: Container, now_s: float) -> str:
    """Return a sentence like "qwen35 exited 4 s ago, restarted 2 times"."""
    return f"{describe_exit(container, now_s)}, restarted {'once' if container.restarts == 1 else f'{container.restarts} times'}"

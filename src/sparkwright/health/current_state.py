"""The current state according to a snapshot alone, which is used if no check is valid any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.health import snapshot
from sparkwright.health.judging import judge, questions
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Rank, Record, Server
from sparkwright.health.settings import Settings
from sparkwright.health.snapshot import Snapshot
from sparkwright.health.store import CheckHistory
from sparkwright.host.records import turns
from sparkwright.host.state import StateFolder

NO_RANK = Rank()
#: questions of a check that a snapshot can answer
SNAPSHOT_QUESTIONS = ("container", "rank", "/health")


def evaluate_snapshot(
    current: Snapshot,
    good: Mapping[str, Any],
    rank: Rank = NO_RANK,
    *,
    limits: Limits,
    broken: str = "",
    stopped: str = "",
    asleep: str = "",
    wake: str = "",
) -> tuple[str, str]:
    """Evaluate a snapshot by the rules of a check.

    Args:
        rank: the rank of a cluster's worker, which has no /health.
        limits: those of the host's checks.
        broken, stopped, asleep, wake: see `Observation`.

    Returns:
        The state (up, starting, crash-looping, down or unknown) and the reason.
    """
    container = current.container
    if container.status == "running" and current.health_status is None and not current.error and not rank.rank:
        return "unknown", f"{container.name} publishes no port"
    observation = Observation(
        current.time_s,
        engine_error=current.error,
        container=container,
        broken=broken,
        stopped=stopped,
        asleep=asleep,
        wake=wake,
        answered=snapshot.is_verified_since_start(container, good),
        ready_s=snapshot.ready_s(good),
        server=Server(current.url, health_status=current.health_status),
        loading=current.loading,
        rank=rank,
    )
    evaluation = judge.evaluate_observation(observation, limits, SNAPSHOT_QUESTIONS)
    if rank.rank and evaluation.state == "ok":
        return "up", evaluation.why
    return (
        ("up", "/health answers; no test request sent")
        if evaluation.state == "ok"
        else (evaluation.state, evaluation.why)
    )


def start_limit_s(good: Mapping[str, Any], limits: Limits) -> float:
    """Return how long a start may take, in seconds."""
    return questions.start_limit_s(snapshot.ready_s(good), limits)


def build_record(
    current: Snapshot, good: Mapping[str, Any], folder: StateFolder, *, busy: str, sandbox: bool, rank: Rank = NO_RANK
) -> dict[str, Any]:
    """Return a snapshot as a record, with the state from `evaluate_snapshot`, or `in progress` while a run changes the server.

    Args:
        folder: the host's state folder, with the results of earlier checks and runs.
    """
    container, past_checks = current.container, CheckHistory.load(folder)
    broken, stopped = past_checks.stopped_for(container.id, good), past_checks.stopped_by(folder, container.id)
    asleep, wake = turns.other_awake_server(folder), turns.service_message(folder)
    limits = Settings.load(folder).limits
    state, why = evaluate_snapshot(
        current, good, rank, limits=limits, broken=broken, stopped=stopped, asleep=asleep, wake=wake
    )
    if state == "up" and wake:
        why = f"{why}; {wake}"
    if busy and state != "up":
        state, why = "in progress", busy
    server = Server(current.url, health_status=current.health_status)
    record = Record(
        time_s=current.time_s,
        state="unknown",
        seen="unknown",
        since_s=current.time_s,
        why=why,
        busy=busy,
        container=current.container,
        rank=rank,
        server=server,
        serves=snapshot.build_serves(good),
        sandbox=sandbox,
    )
    return {**record.to_json(), "state": state, "seen": state}

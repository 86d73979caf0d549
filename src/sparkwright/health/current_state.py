"""Derive the current state of a server without a valid check from a snapshot."""

from __future__ import annotations

from typing import Any

from sparkwright.health import snapshot
from sparkwright.health.judging import judge, questions
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Rank, Record, Server
from sparkwright.health.settings import Settings
from sparkwright.health.snapshot import Snapshot
from sparkwright.health.store import CheckHistory
from sparkwright.host.records import turns
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder

NO_RANK = Rank()
#: questions of a check that a snapshot can answer
SNAPSHOT_QUESTIONS = ("container", "rank", "/health")


def evaluate_snapshot(
    current: Snapshot,
    verified_state: VerifiedState,
    rank: Rank = NO_RANK,
    *,
    limits: Limits,
    loop_stop_reason: str = "",
    stopping_run: str = "",
    awake_server: str = "",
    wake_message: str = "",
) -> tuple[str, str]:
    """Evaluate a snapshot by the rules of a check.

    Args:
        rank: the rank of a cluster's worker, which has no /health.
        limits: the limits of the host's checks.
        loop_stop_reason, stopping_run, awake_server, wake_message: see `Observation`.

    Returns:
        The state and the reason. "up" replaces "ok": a snapshot does not prove that the server generates.
    """
    container = current.container
    if container.status == "running" and current.health_status is None and not current.error and not rank.rank:
        return "unknown", f"{container.name} publishes no port"
    observation = Observation(
        current.time_s,
        engine_error=current.error,
        container=container,
        loop_stop_reason=loop_stop_reason,
        stopping_run=stopping_run,
        awake_server=awake_server,
        wake_message=wake_message,
        has_answered=snapshot.is_verified_since_start(container, verified_state),
        ready_s=snapshot.ready_s(verified_state),
        server=Server(current.url, health_status=current.health_status),
        loading=current.loading,
        rank=rank,
    )
    evaluation = judge.evaluate_observation(observation, limits, SNAPSHOT_QUESTIONS)
    if evaluation.state != "ok":
        return evaluation.state, evaluation.why
    return "up", evaluation.why if rank.rank else "/health answers; no test request sent"


def start_limit_s(verified_state: VerifiedState, limits: Limits) -> float:
    """Return how long a start may take, in seconds. verified_state: the last verified state."""
    return questions.start_limit_s(snapshot.ready_s(verified_state), limits)


def build_record(
    current: Snapshot,
    verified_state: VerifiedState,
    folder: StateFolder,
    *,
    active_run: str,
    sandbox: bool,
    rank: Rank = NO_RANK,
) -> dict[str, Any]:
    """Return a snapshot as a record, with the state from `evaluate_snapshot`, or `in progress` while a run changes the server.

    Args:
        folder: the host's state folder, with the results of earlier checks and runs.
        active_run: the run in progress on the host; empty if there is none.
    """
    container, history, settings = current.container, CheckHistory.load(folder), Settings.load(folder)
    wake_message = turns.service_message(folder)
    state, reason = evaluate_snapshot(
        current,
        verified_state,
        rank,
        limits=settings.limits,
        loop_stop_reason=history.loop_stop_reason(container.id, verified_state),
        stopping_run=history.find_stopping_run(folder, container.id),
        awake_server=turns.other_awake_server(folder),
        wake_message=wake_message,
    )
    if state == "up" and wake_message:
        reason = f"{reason}; {wake_message}"
    if active_run and state != "up":
        state, reason = "in progress", active_run
    record = Record(
        time_s=current.time_s,
        state="unknown",
        seen="unknown",
        since_s=current.time_s,
        why=reason,
        busy=active_run,
        container=container,
        rank=rank,
        server=Server(current.url, health_status=current.health_status),
        serves=snapshot.build_serves(verified_state),
        every_s=settings.every_s,
        sandbox=sandbox,
    )
    return {**record.to_json(), "state": state, "seen": state}

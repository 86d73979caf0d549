"""The current state as judged from a snapshot alone, which is used if no check is valid any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.health import snapshot
from sparkwright.health.judging import judge, questions
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Rank, Record, Server
from sparkwright.health.snapshot import Now
from sparkwright.health.store import CheckHistory
from sparkwright.host.records import turns
from sparkwright.host.state import StateFolder

NO_RANK = Rank()
#: questions of a check that a snapshot can answer
ASKED = ("container", "rank", "/health")


def judged(
    now: Now,
    good: Mapping[str, Any],
    rank: Rank = NO_RANK,
    *,
    broken: str = "",
    stopped: str = "",
    asleep: str = "",
    wake: str = "",
) -> tuple[str, str]:
    """Judge a snapshot by the rules of a check.

    Args:
        rank: the rank of a cluster's worker, which has no /health.
        broken, stopped, asleep, wake: see `Observation`.

    Returns:
        The state (up, starting, crash-looping, down or unknown) and the reason.
    """
    box = now.container
    if box.status == "running" and now.health_status is None and not now.error and not rank.rank:
        return "unknown", f"{box.name} publishes no port"
    seen = Observation(
        now.time_s,
        engine_error=now.error,
        container=box,
        broken=broken,
        stopped=stopped,
        asleep=asleep,
        wake=wake,
        answered=snapshot.ready_since(box, good),
        ready_s=snapshot.ready_s(good),
        server=Server(now.url, health_status=now.health_status),
        loading=now.loading,
        rank=rank,
    )
    found = judge.judge(seen, Limits(), ASKED)
    if rank.rank and found.state == "ok":
        return "up", found.why
    return ("up", "/health answers; no test request sent") if found.state == "ok" else (found.state, found.why)


def allowed_s(good: Mapping[str, Any], limits: Limits) -> float:
    """Return how long a start may take, in seconds."""
    return questions.allowed_s(snapshot.ready_s(good), limits)


def record_of(
    now: Now, good: Mapping[str, Any], folder: StateFolder, *, busy: str, sandbox: bool, rank: Rank = NO_RANK
) -> dict[str, Any]:
    """Return a snapshot as the JSON of a record, with the state from `judged`, or `in progress` while a run changes the server.

    Args:
        folder: the host's state folder, with the results of earlier checks and runs.
    """
    box, past = now.container, CheckHistory.of(folder)
    broken, stopped = past.stopped_for(box.id, good), past.stopped_by(folder, box.id)
    asleep, wake = turns.in_place_of(folder), turns.message(folder)
    state, why = judged(now, good, rank, broken=broken, stopped=stopped, asleep=asleep, wake=wake)
    if state == "up" and wake:
        why = f"{why}; {wake}"
    if busy and state != "up":
        state, why = "in progress", busy
    server = Server(now.url, health_status=now.health_status)
    found = Record(
        time_s=now.time_s,
        state="unknown",
        seen="unknown",
        since_s=now.time_s,
        why=why,
        busy=busy,
        container=now.container,
        rank=rank,
        server=server,
        serves=snapshot.serves_of(good),
        sandbox=sandbox,
    )
    return {**found.to_json(), "state": state, "seen": state}

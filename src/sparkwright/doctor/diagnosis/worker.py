"""The state of a worker of a cluster, from its container and its log alone: it answers no requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.doctor.diagnosis.diagnosis_input import DiagnosisInput
from sparkwright.doctor.diagnosis.server_state import EXITS, ServerState, State
from sparkwright.health import current_state, ranks
from sparkwright.health.check_history import CheckHistory
from sparkwright.health.probe import start_of
from sparkwright.health.snapshot import Now
from sparkwright.host.containers import membership
from sparkwright.host.module import Context


def standing(context: Context, good: Mapping[str, Any], seen: DiagnosisInput) -> ServerState | None:
    """Return the state of a worker; None if the server is not one. good: the last verified state."""
    labels = (good.get("spec") or {}).get("labels")
    if not membership.of_labels(labels).rank:
        return None
    rank = ranks.now(context, good, seen.box, CheckHistory.of(context.state), start_of(seen.box))
    state, message = current_state.judged(Now(seen.now_s, seen.box, error=seen.engine_error), good, rank)
    if seen.busy:
        return ServerState("in progress", f"in progress: {seen.busy}; {message}")
    known: dict[str, State] = {**{str(name): name for name in EXITS}, "up": "ok"}
    fix = f"`invoke restart --host {rank.cluster}` starts the cluster again as one." if state == "down" else ""
    return ServerState(known.get(state, "unknown"), message, fix)

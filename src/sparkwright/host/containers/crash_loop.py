"""Detect crash loops, and stop the containers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.host.containers import containers, lifecycle, ownership
from sparkwright.host.module import Context
from sparkwright.host.records import history, incidents, verified_states

SAMPLE_RETENTION_S = 86400.0
MAX_RESTARTS = 3
WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class RestartSample:
    """A container's restart count at one moment."""

    #: seconds since the epoch
    time_s: float
    #: Docker's count for this container; a manual start resets it to 0
    restart_count: int


def evaluate_restarts(
    container: Mapping[str, Any], samples: Sequence[RestartSample], *, now_s: float, max_restarts: int, window_s: float
) -> str:
    """Return the reason why a server must not be restarted by its policy; empty if it may be.

    More than max_restarts restarts within window_s count as a crash loop. A container that exited although its policy would
    keep it running either exited with code 0 or was stopped manually; both are reported, and it is not started again.

    Args:
        container: inspect data.
        samples: earlier samples of the same container, the first taken when it was verified.
    """
    state, policy = container["State"], container["HostConfig"]["RestartPolicy"]["Name"] or "no"
    if policy == "no":
        return ""
    restart_count = int(container.get("RestartCount", 0))
    valid_samples = [sample for sample in samples if sample.restart_count <= restart_count]
    older_samples = [sample for sample in valid_samples if now_s - sample.time_s >= window_s]
    baseline = older_samples[-1] if older_samples else valid_samples[0] if valid_samples else None
    recent_restarts = restart_count - baseline.restart_count if baseline is not None else 0
    if recent_restarts > max_restarts:
        return f"it restarted {recent_restarts} times within {window_s / 60:g} minutes"
    if state["Status"] == "exited" and state["ExitCode"] == 0:
        return "it exited with code 0 (or was stopped manually)"
    return ""


def stop_crash_loop(context: Context, name: str, reason: str, requester: str = "") -> str:
    """Remove the restart policy, save an incident and stop the container. Returns the name of the incident.

    Args:
        requester: author of the history entry; if empty, the user of this run.
    """
    client = context.docker()
    container = containers.inspect(client, name) or {}
    if container:
        lifecycle.set_policy(context, container, "no")
    folder = incidents.save(context, name, reason)
    if containers.is_running(client, name):
        lifecycle.stop(context, container, 10)
    author = {"who": requester} if requester else {}
    history.append(context, "stopped for a crash loop", container_id=container.get("Id", ""), why=reason, **author)
    return folder.name


def find_stop_reason_and_record_sample(
    container: Mapping[str, Any], context: Context, *, max_restarts: int = MAX_RESTARTS, window_s: float = WINDOW_S
) -> str:
    """Return the result of `find_stop_reason`; if it is empty, record a sample for the next check."""
    reason = find_stop_reason(container, context, max_restarts=max_restarts, window_s=window_s)
    if not reason:
        record_sample(container, context)
    return reason


def record_sample(container: Mapping[str, Any], context: Context) -> None:
    """Record the container's restart count for the next check, except in check mode. Raises OSError."""
    if not context.check:
        sample = RestartSample(time.time(), int(container.get("RestartCount", 0)))
        _write_samples(container, [*_read_samples(container, context), sample], context)


def find_stop_reason(
    container: Mapping[str, Any], context: Context, *, max_restarts: int = MAX_RESTARTS, window_s: float = WINDOW_S
) -> str:
    """Return the reason why a container must not be restarted by its policy; empty if it may be, or if it is not ours."""
    if not ownership.is_ours(context, container):
        return ""
    return evaluate_restarts(
        container, _read_samples(container, context), now_s=time.time(), max_restarts=max_restarts, window_s=window_s
    )


def _read_samples(container: Mapping[str, Any], context: Context) -> list[RestartSample]:
    """Return earlier samples of this container, oldest first, including the one taken when it was verified."""
    verified = verified_states.load_last(context.state)
    record = context.state.read("restarts") or {}
    rows = [RestartSample(*row) for row in record.get("seen", [])] if record.get("id") == container["Id"] else []
    if verified.container_id == container["Id"]:
        rows.insert(0, RestartSample(verified.since, verified.restart_count))
    return sorted(set(rows), key=lambda sample: sample.time_s)


def _write_samples(container: Mapping[str, Any], samples: Sequence[RestartSample], context: Context) -> None:
    recent = [sample for sample in samples if 0 <= time.time() - sample.time_s < SAMPLE_RETENTION_S]
    rows = [[sample.time_s, sample.restart_count] for sample in recent]
    context.state.write("restarts", {"id": container["Id"], "seen": rows})

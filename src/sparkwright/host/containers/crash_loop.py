"""Detection of crash loops, and stopping them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.host.containers import container_labels, containers, lifecycle
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, history, incidents

KEPT_S = 86400.0
MOST = 3
WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A container's restart count at one moment."""

    #: seconds since the epoch
    time_s: float
    #: the engine's count for this container; a manual start resets it to 0
    restarts: int


def verdict(container: Mapping[str, Any], seen: Sequence[Sample], *, now_s: float, most: int, within_s: float) -> str:
    """Return the reason why a server must not be restarted by its policy; empty if it may.

    More than `most` restarts in the last within_s is a crash loop. A container that exited although its policy would keep it up
    either exited with code 0 or was stopped manually: both are reported, and neither is started again.

    Args:
        container: its inspect.
        seen: earlier samples of the same container, the first from its verification.
    """
    state, policy = container["State"], container["HostConfig"]["RestartPolicy"]["Name"] or "no"
    if policy == "no":
        return ""
    restarts = int(container.get("RestartCount", 0))
    known = [sample for sample in seen if sample.restarts <= restarts]
    before = [sample for sample in known if now_s - sample.time_s >= within_s]
    base = before[-1] if before else known[0] if known else None
    recent = restarts - base.restarts if base is not None else 0
    if recent > most:
        minutes = within_s / 60
        return f"it restarted {recent} times within {minutes:g} minutes"
    if state["Status"] == "exited" and state["ExitCode"] == 0:
        return "it exited with code 0 (or was stopped manually)"
    return ""


def break_loop(context: Context, name: str, why: str, who: str = "") -> str:
    """Remove the restart policy, collect incident diagnostics and stop the container. Returns the name of the incident.

    Args:
        who: for the history; empty for the user of this run.
    """
    client = context.docker()
    container = containers.inspect(client, name) or {}
    if container:
        lifecycle.set_policy(context, container, "no")
    folder = incidents.save(context, name, why)
    if containers.running(client, name):
        lifecycle.stop(context, container, 10)
    by = {"who": who} if who else {}
    history.append(context, "stopped for a crash loop", container_id=container.get("Id", ""), why=why, **by)
    return folder.name


def inspect(container: Mapping[str, Any], context: Context, *, most: int = MOST, within_s: float = WITHIN_S) -> str:
    """Return the verdict on a container now; without a finding, record a sample for the next check."""
    why = verdict_now(container, context, most=most, within_s=within_s)
    if not why and not context.check:
        now = Sample(time.time(), int(container.get("RestartCount", 0)))
        _remember(container, [*_samples(container, context), now], context)
    return why


def verdict_now(container: Mapping[str, Any], context: Context, *, most: int = MOST, within_s: float = WITHIN_S) -> str:
    """Return the verdict on a container by earlier samples; empty for one that is not ours. Records nothing."""
    if not container_labels.ours(context, container):
        return ""
    return verdict(container, _samples(container, context), now_s=time.time(), most=most, within_s=within_s)


def _samples(container: Mapping[str, Any], context: Context) -> list[Sample]:
    """Return earlier samples of this container, oldest first, including the one of its verification."""
    good = good_states.last(context.state)
    known = context.state.read("restarts") or {}
    rows = [Sample(*row) for row in known.get("seen", [])] if known.get("id") == container["Id"] else []
    if good.get("container_id") == container["Id"]:
        rows.insert(0, Sample(float(good.get("since", 0)), int(good.get("restart_count", 0))))
    return sorted(set(rows), key=lambda sample: sample.time_s)


def _remember(container: Mapping[str, Any], seen: Sequence[Sample], context: Context) -> None:
    rows = [[sample.time_s, sample.restarts] for sample in seen if 0 <= time.time() - sample.time_s < KEPT_S]
    context.state.write("restarts", {"id": container["Id"], "seen": rows})

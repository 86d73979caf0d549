"""The status of a host in a short answer, which is the last check if that is still valid, and otherwise a snapshot.

The container and /health are read each time, but no token is requested and nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.health import snapshot, store
from sparkwright.health.record import Rank, Record
from sparkwright.host.containers import container_labels
from sparkwright.host.machine import Machine
from sparkwright.host.records import good_states
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event

#: folder of a gateway's files in the state folder; hosts without one, which are most, import nothing for it
GATEWAY = "gateway"
#: folder of the samples of guarded starts
GUARD = "guard"


def read_status(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `status` event.

    It has record (as health/record.py has it), live, late, busy, and memory_available_bytes of this moment.

    traffic: requests and generated tokens by the server's own counters, and the GPU's temperature, if requested. load_s: the
    stages of the server's start, seconds, as they were measured when it was verified.

    busy: the run that holds the host's lock now. interrupted: the last one if it was cut off, and its fix. gateway: of
    host/gateway/haproxy_sockets.py, if requested; empty if none was ever verified. live: no check is valid for the
    present; `record.state` is then of this moment: `up`, `starting`, `in progress`, `down`, `crash-looping` or
    `unknown`. outdated: why the last check is not valid, with its result. late: the scheduled check is overdue.
    """
    now_s, good = time.time(), good_states.last(state)
    busy, interrupted = _runs(machine, state)
    found, gateway = store.latest(state.memory), _gateway(state)
    name = found.container.name if found is not None and found.container.name else request["container"]
    now = snapshot.inspect(machine, good, name, now_s)
    outdated = "" if found is None else snapshot.outdated(found, now, good)
    late = found is not None and found.late(now_s)
    if found is not None and not outdated:
        outdated = _gateway_outdated(found, gateway)
    about: dict[str, Any] = {
        "gateway": gateway if request["gateway"] else {},
        "traffic": {**snapshot.traffic(good, now), **snapshot.temperature(machine)} if request["traffic"] else {},
        "late": late,
        "busy": busy,
        "interrupted": interrupted,
        "load_s": _load(good, now),
        **_now(machine),
    }
    if found is not None and not outdated and not busy:
        yield event("status", record=found.to_json(), live=False, outdated="", **about)
        return
    from sparkwright.health import current_state

    rank = _rank(machine, state, good, now)
    shown = current_state.record_of(now, good, state, busy=busy, sandbox=machine.sandbox, rank=rank)
    last = f"{outdated} (last state: {found.state})" if found is not None and outdated else ""
    if found is not None:
        shown["every_s"] = found.every_s
    yield event("status", record=shown, live=True, outdated=last, **about)


def read_checks(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `checks` event with fields, and the rows of checks since `since_s` (seconds since the epoch), oldest first.

    It has only the fields that the report needs, because at the usual interval a week has some 2,000 rows.
    """
    rows = [row_of(record) for record in store.history(state.memory, request["since_s"] or 0.0)]
    yield event("checks", fields=list(FIELDS), rows=rows)


#: fields of a row in `read_checks`, in order
FIELDS = (
    *("time_s", "state", "why", "tok_per_s", "baseline_tok_per_s", "mem_available_bytes"),
    *("temperature_c", "power_w", "healed", "every_s"),
)


def row_of(record: Record) -> list[Any]:
    """Return a check as a row, with `tok_per_s` only if it was measured by this check, as others repeat the last one."""
    fresh = record.speed.measured_s is not None and abs(record.speed.measured_s - record.time_s) < max(
        record.every_s, 60.0
    )
    speed = record.speed.tok_per_s if fresh else None
    why = "" if record.state == "ok" else record.sentence
    figures = (
        speed,
        record.speed.baseline_tok_per_s,
        record.machine.mem_available_bytes,
        record.gpu.temperature_c,
        record.gpu.power_w,
    )
    return [round(record.time_s), record.state, why, *figures, record.healed, record.every_s]


def _gateway(state: StateFolder) -> dict[str, Any]:
    """Return the state of this host's gateway; empty if there never was one."""
    if not (state.path / GATEWAY).is_dir():
        return {}
    from sparkwright.host.gateway import haproxy_sockets

    return haproxy_sockets.inspect(state)


def _gateway_outdated(record: Record, gateway: dict[str, Any]) -> str:
    """Return the reason why a check is no longer valid if the gateway was healthy then and is not now, or the reverse."""
    levels = [evidence.level for evidence in record.evidence if evidence.check == "gateway"]
    if not gateway or not levels:
        return ""
    from sparkwright.host.gateway import haproxy_sockets

    return "" if (levels[0] == "ok") == (not haproxy_sockets.wrong(gateway)) else "no check since the gateway changed"


def _load(good: Mapping[str, Any], now: snapshot.Now) -> dict[str, float]:
    """Return the seconds of each stage of the start; empty if the container was replaced or started again since."""
    found = (good.get("measured") or {}).get("load_s") if snapshot.ready_since(now.container, good) else None
    return found if isinstance(found, dict) else {}


def _runs(machine: Machine, state: StateFolder) -> tuple[str, str]:
    """Describe the run in progress, and how the host went down along with the interrupted run."""
    owner, alive = lock.inspect(state)
    if owner is not None and alive:
        return str(owner), ""
    lost = _lost(machine, state)
    if owner is None:
        return "", lost
    from sparkwright.host.runs import journal

    return "", "; ".join(filter(None, (lost, journal.interrupted(state))))


def _lost(machine: Machine, state: StateFolder) -> str:
    """Describe how this host went down; empty if no memory guard recorded it."""
    if not (state.path / GUARD).is_dir():
        return ""
    from sparkwright.host.memory import host_lost

    return host_lost.message(state, machine)


def _rank(machine: Machine, state: StateFolder, good: Mapping[str, Any], now: snapshot.Now) -> Rank:
    """Return the observed state of a worker's rank; an empty one for a server that answers requests."""
    if now.error or not container_labels.membership_of_labels((good.get("spec") or {}).get("labels")).rank:
        return Rank()
    from sparkwright.health import probe
    from sparkwright.health.probe import start_of
    from sparkwright.health.store import CheckHistory
    from sparkwright.host.runs.context import Engine, RunContext

    context = RunContext(
        machine, state, "status", lambda event: None, engine=Engine(machine, timeout_s=int(snapshot.ENGINE_S))
    )
    return probe.rank_now(context, good, now.container, CheckHistory.of(state), start_of(now.container))


def _now(machine: Machine) -> dict[str, Any]:
    try:
        memory = machine.meminfo()
    except (OSError, ValueError):
        return {"memory_available_bytes": None, "memory_total_bytes": None}
    return {"memory_available_bytes": memory.get("MemAvailable"), "memory_total_bytes": memory.get("MemTotal")}

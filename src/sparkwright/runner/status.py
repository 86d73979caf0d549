"""The status of a host: its last check if that is still valid, otherwise a snapshot.

Each request reads the container and /health; it generates no token and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sparkwright.health import snapshot, store
from sparkwright.health.record import Rank, Record
from sparkwright.host.containers import container_labels
from sparkwright.host.machine import Machine
from sparkwright.host.records import turns, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event

#: folder of a gateway's files in the state folder; without it, as on most hosts, nothing is imported for a gateway
GATEWAY_FOLDER = "gateway"
#: folder of the samples of guarded starts
GUARD_FOLDER = "guard"
#: fields of a row in `read_checks`, in order; the laptop reads them with `CHECK_SHAPE` of html/checks.py
CHECK_FIELDS: Mapping[str, Callable[[Record], Any]] = {
    "time_s": lambda record: round(record.time_s),
    "state": lambda record: record.state,
    "why": lambda record: "" if record.state == "ok" else record.sentence,
    "tok_per_s": lambda record: _read_measured_rate(record),
    "baseline_tok_per_s": lambda record: record.speed.baseline_tok_per_s,
    "mem_available_bytes": lambda record: record.machine.mem_available_bytes,
    "temperature_c": lambda record: record.gpu.temperature_c,
    "power_w": lambda record: record.gpu.power_w,
    "healed": lambda record: record.healed,
    "every_s": lambda record: record.every_s,
}


def read_status(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `status` event with these fields.

    record: the last check (see health/record.py) or, if `live`, a snapshot with the state `up`, `starting`, `in progress`,
        `down`, `crash-looping` or `unknown`
    live: True if the last check is not valid
    outdated: why the last check is not valid, with its state
    late: True if the scheduled check is overdue
    busy: the run that holds the host's lock
    interrupted: the last run if it was interrupted, with the command that resolves it
    gateway: if requested, see host/gateway/haproxy_sockets.py; empty if there is none
    traffic: if requested, requests and generated tokens from the server's counters, and the GPU's temperature
    load_s: seconds that each stage of the server's start took, measured when it was verified
    memory_available_bytes, memory_total_bytes: the host's memory now
    now_s: the host's time; the times in the record are relative to it, whatever the laptop's clock says
    """
    now_s, verified_state = time.time(), verified_states.load_last(state)
    active_run, interruption = _describe_runs(machine, state)
    last_check, gateway = store.load_latest(state.records_folder), _read_gateway(state)
    name = last_check.container.name if last_check is not None and last_check.container.name else request["container"]
    current = snapshot.inspect(machine, verified_state, name, now_s)
    outdated_reason = "" if last_check is None else snapshot.outdated_reason(last_check, current, verified_state)
    is_overdue = last_check is not None and last_check.is_overdue(now_s)
    if last_check is not None and not outdated_reason:
        outdated_reason = _describe_gateway_change(last_check, gateway)
    fields: dict[str, Any] = {
        "gateway": gateway if request["gateway"] else {},
        "traffic": {},
        "now_s": now_s,
        "late": is_overdue,
        "busy": active_run,
        "interrupted": interruption,
        "load_s": _select_stage_durations(verified_state, current),
        **_read_memory(machine),
    }
    if request["traffic"]:
        fields["traffic"] = {**snapshot.read_traffic(verified_state, current), **snapshot.read_temperature(machine)}
    if last_check is not None and not outdated_reason and not active_run:
        check = _update_sleep(last_check, verified_state, state)
        yield event("status", record=check.to_json(), live=False, outdated="", **fields)
        return
    from sparkwright.health import current_state

    rank = _observe_rank(machine, state, verified_state, current)
    record = current_state.build_record(
        current, verified_state, state, active_run=active_run, sandbox=machine.sandbox, rank=rank
    )
    outdated_note = (
        f"{outdated_reason} (last state: {last_check.state})" if last_check is not None and outdated_reason else ""
    )
    yield event("status", record=record, live=True, outdated=outdated_note, **fields)


def read_checks(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `checks` event: the checks since `since_s` (seconds since the epoch) as rows of CHECK_FIELDS, oldest first.

    A row has only the fields that the report needs, because at the usual interval a week has about 2,000 rows.
    """
    rows = [check_row(record) for record in store.load_history(state.records_folder, request["since_s"] or 0.0)]
    yield event("checks", fields=list(CHECK_FIELDS), rows=rows)


def _read_measured_rate(record: Record) -> float | None:
    """Return the decode rate; None if this check only repeats an earlier measurement."""
    speed = record.speed
    max_age_s = max(record.every_s, 60.0)
    is_from_this_check = speed.measured_s is not None and abs(speed.measured_s - record.time_s) < max_age_s
    return speed.tok_per_s if is_from_this_check else None


def check_row(record: Record) -> list[Any]:
    """Return a check as a row of CHECK_FIELDS."""
    return [read(record) for read in CHECK_FIELDS.values()]


def _read_gateway(state: StateFolder) -> dict[str, Any]:
    if not (state.path / GATEWAY_FOLDER).is_dir():
        return {}
    from sparkwright.host.gateway import haproxy_sockets

    return haproxy_sockets.inspect(state)


def _update_sleep(record: Record, verified_state: VerifiedState, state: StateFolder) -> Record:
    """Return a check of a sleeping server with the wake service's current message, which changes between checks."""
    awake_server = turns.other_awake_server(state)
    if record.state != "asleep" or record.container.status != "exited" or not verified_state or not awake_server:
        return record
    from sparkwright.health.judging import questions

    return replace(record, why=questions.describe_sleep(awake_server, turns.service_message(state)))


def _describe_gateway_change(record: Record, gateway: dict[str, Any]) -> str:
    """Return why a check is no longer valid if the gateway's health has changed since; empty if it has not."""
    levels = [evidence.level for evidence in record.evidence if evidence.check == "gateway"]
    if not gateway or not levels:
        return ""
    from sparkwright.host.gateway import haproxy_sockets

    was_healthy, is_healthy = levels[0] == "ok", not haproxy_sockets.describe_problem(gateway)
    return "" if was_healthy == is_healthy else "no check since the gateway changed"


def _select_stage_durations(verified_state: VerifiedState, current: snapshot.Snapshot) -> dict[str, float]:
    """Return the seconds of each stage of the start; empty if the container has been replaced or started again since."""
    if not snapshot.is_verified_since_start(current.container, verified_state):
        return {}
    return verified_state.measured.get("load_s") or {}


def _describe_runs(machine: Machine, state: StateFolder) -> tuple[str, str]:
    """Describe the run in progress, and an interrupted run with the outage that ended it; both empty if there is none."""
    owner, is_alive = lock.inspect(state)
    if owner is not None and is_alive:
        return str(owner), ""
    host_outage = _describe_host_outage(machine, state)
    if owner is None:
        return "", host_outage
    from sparkwright.host.runs import journal

    return "", "; ".join(filter(None, (host_outage, journal.interruption_notice(state))))


def _describe_host_outage(machine: Machine, state: StateFolder) -> str:
    """Describe how this host went down; empty if no memory guard recorded it."""
    if not (state.path / GUARD_FOLDER).is_dir():
        return ""
    from sparkwright.host.memory import host_outage

    return host_outage.status_message(state, machine)


def _observe_rank(
    machine: Machine, state: StateFolder, verified_state: VerifiedState, current: snapshot.Snapshot
) -> Rank:
    """Return the observed state of a cluster's worker; empty for a server with an API."""
    if current.error or not container_labels.membership_of_labels(verified_state.spec.get("labels")).rank:
        return Rank()
    from sparkwright.health import probe
    from sparkwright.health.store import CheckHistory
    from sparkwright.host.runs.context import DockerEngine, RunContext

    engine = DockerEngine(machine, timeout_s=int(snapshot.DOCKER_TIMEOUT_S))
    context = RunContext(machine, state, "status", lambda event: None, engine=engine)
    return probe.read_rank(context, verified_state, current.container, CheckHistory.load(state))


def _read_memory(machine: Machine) -> dict[str, Any]:
    try:
        memory = machine.meminfo()
    except (OSError, ValueError):
        return {"memory_available_bytes": None, "memory_total_bytes": None}
    return {"memory_available_bytes": memory.get("MemAvailable"), "memory_total_bytes": memory.get("MemTotal")}

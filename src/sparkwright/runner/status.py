"""What a host says of itself in one short answer: its last scheduled check, or, where nothing is scheduled, a look now.

It asks for no token and writes nothing. What the clock's check has found is not looked for again: it costs next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sparkwright.health import record
from sparkwright.health.record import Record
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.plan.events import Event, event
from sparkwright.runner import lock

#: a check by hand speaks for the present as long as this
BY_HAND_S = 600.0


def read_status(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """One `status` event: record (as health/record.py has it), live, late, busy, and memory_available_bytes of this moment.

    live: no check speaks for the present, so it was looked now; `record.state` is then `up`, `starting`, `down` or `unknown`.
    late: the scheduled check is overdue.
    """
    now_s = time.time()
    found = record.latest(state.path)
    busy = _busy(state)
    if found is None or not _speaks(found, now_s):
        from sparkwright.runner import live_status

        told = live_status.look(machine, state, str(request.get("container", "")), now_s, busy)
        yield event("status", record=told, live=True, late=False, busy=busy, **_now(machine))
        return
    yield event("status", record=found.to_json(), live=False, late=found.late(now_s), busy=busy, **_now(machine))


def read_checks(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """One `checks` event: fields, and rows of the checks since `since_s` (seconds since the epoch), oldest first.

    What the report draws, and no more: a week of a check every five minutes is 2,016 rows.
    """
    rows = [row_of(one) for one in record.history(state.path, float(request.get("since_s", 0)))]
    yield event("checks", fields=list(FIELDS), rows=rows)


#: of a row of `read_checks`, in this order
FIELDS = (
    *("time_s", "state", "why", "tok_per_s", "baseline_tok_per_s", "mem_available_bytes"),
    *("temperature_c", "power_w", "healed"),
)


def row_of(one: Record) -> list[Any]:
    """A check as a row. tok_per_s: only of a check that measured it, for others repeat the last measurement."""
    fresh = one.speed.measured_s is not None and abs(one.speed.measured_s - one.time_s) < max(one.every_s, 60.0)
    speed = one.speed.tok_per_s if fresh else None
    why = "" if one.state == "ok" else one.why
    figures = (
        speed,
        one.speed.baseline_tok_per_s,
        one.machine.mem_available_bytes,
        one.gpu.temperature_c,
        one.gpu.power_w,
    )
    return [round(one.time_s), one.state, why, *figures, one.healed]


def _speaks(one: Record, now_s: float) -> bool:
    """Whether a check says something of the present: it comes again by itself, or was just made."""
    return one.every_s > 0 or 0 <= now_s - one.time_s < BY_HAND_S


def _busy(state: StateFolder) -> str:
    owner, alive = lock.look(state)
    return str(owner) if owner is not None and alive else ""


def _now(machine: Machine) -> dict[str, Any]:
    try:
        memory = machine.meminfo()
    except (OSError, ValueError):
        return {"memory_available_bytes": None, "memory_total_bytes": None}
    return {"memory_available_bytes": memory.get("MemAvailable"), "memory_total_bytes": memory.get("MemTotal")}

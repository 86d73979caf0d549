"""A host's week of checks, in the format of a host."""

from collections.abc import Callable
from typing import Any

from sparkwright import html
from sparkwright.health.record import Gpu, Machine, Record, Speed, State
from sparkwright.runner.status import CHECK_FIELDS, check_row
from sparkwright.units import GIB

HOUR_S, DAY_S = 3600.0, 86400.0
SINCE_S = 1_795_000_000.0 // DAY_S * DAY_S
UNTIL_S = SINCE_S + 7 * DAY_S


def make_check(
    time_s: float, state: State = "ok", *, why: str = "fine", tok_per_s: float | None = None, memory_gib: float = 20.0
) -> Record:
    """Return a scheduled check, one every five minutes; with tok_per_s it includes a measurement."""
    speed = Speed(tok_per_s or 50.0, 52.0, 0.1, "proved", time_s if tok_per_s else time_s - HOUR_S)
    machine = Machine(mem_total_bytes=120 * GIB, mem_available_bytes=int(memory_gib * GIB))
    return Record(
        time_s, state, state, time_s, why=why, every_s=300.0, speed=speed, machine=machine, gpu=Gpu(temperature_c=55.0)
    )


def make_checks(change: Callable[[float], dict[str, Any] | None] = lambda hours: {}) -> list[Record]:
    """Return a week of checks.

    Args:
        change: returns the differing fields at an hour, or None for no check.
    """
    records = []
    for n in range(7 * 288):
        hours = n / 12
        fields = change(hours)
        if fields is not None:
            records.append(make_check(SINCE_S + n * 300.0, **fields))
    return records


def make_host(records: list[Record], name: str = "spark1") -> html.HostChecks:
    """Return the host as parsed from its answer."""
    event = {"fields": list(CHECK_FIELDS), "rows": [check_row(record) for record in records]}
    return html.parse_host_checks(name, event, SINCE_S, UNTIL_S)

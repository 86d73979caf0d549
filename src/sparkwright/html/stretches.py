"""A check as the report draws it, and how long it is valid: until the next one, or until it is too old. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkwright.health.record import speaks_s
from sparkwright.trust.shapes import Shape, Usual, line, moment


@dataclass(frozen=True, slots=True)
class Check:
    """The part of a check that the report draws. None stands for unknown."""

    time_s: float
    state: str
    why: str = ""
    tok_per_s: float | None = None
    baseline_tok_per_s: float | None = None
    mem_available_bytes: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    healed: str = ""
    #: interval of its schedule; 0 if it was run manually
    every_s: float = 0.0


#: shape of a check as a host sends it
CHECK: dict[str, Shape] = {
    "time_s": moment,
    "state": line,
    **dict.fromkeys(("why", "healed"), Usual(line, "")),
    **dict.fromkeys(
        ("tok_per_s", "baseline_tok_per_s", "mem_available_bytes", "temperature_c", "power_w"),
        Usual((None, float), None),
    ),
    "every_s": Usual(moment, 0.0),
}


@dataclass(frozen=True, slots=True)
class Period:
    """A period of one state; times are seconds since the epoch."""

    state: str
    #: reason that the first check with a reason gives
    why: str
    start_s: float
    end_s: float
    #: a check follows at its end
    known: bool = True


def stretches(checks: Sequence[Check], until_s: float) -> list[Period]:
    """Return the periods with a known state, oldest first; adjacent periods of the same state are merged.

    Args:
        checks: oldest first.
        until_s: end of the last period, seconds since the epoch.
    """
    found: list[Period] = []
    for period in _each(checks, until_s):
        before = found[-1] if found else None
        if before is not None and before.known and before.state == period.state:
            found[-1] = Period(period.state, before.why or period.why, before.start_s, period.end_s, period.known)
        else:
            found.append(period)
    return found


def _each(checks: Sequence[Check], until_s: float) -> Iterator[Period]:
    """Yield the period in which each check is valid."""
    for check, next_s in zip(checks, [*(check.time_s for check in checks[1:]), until_s], strict=False):
        last_s = check.time_s + speaks_s(check.every_s)
        yield Period(check.state, check.why, check.time_s, min(next_s, last_s), next_s <= last_s)


def seconds(found: Sequence[Period], state: str = "") -> float:
    """Return the total length of periods, seconds.

    Args:
        found: the periods.
        state: count only those of this state; empty for all.
    """
    return sum(period.end_s - period.start_s for period in found if state in ("", period.state))

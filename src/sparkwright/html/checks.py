"""A host's checks, summarized over equal time spans for the plots and the table."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.health.record import severity, validity_s
from sparkwright.trust.shapes import OptionalField, Shape, build_dataclass, line, moment, validate
from sparkwright.units import GIB

MAX_SPANS = 240
#: round lengths for a span, in seconds
SPAN_LENGTHS_S = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Check:
    """The data of a check that the report shows; None for unknown values."""

    time_s: float
    state: str
    why: str = ""
    tok_per_s: float | None = None
    baseline_tok_per_s: float | None = None
    mem_available_bytes: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    #: outcome of a restart, or the reason why there was none; empty if a restart would not help or healing is disabled
    healed: str = ""
    #: interval of the schedule; 0 for a manual check
    every_s: float = 0.0


#: shape of a check, as sent by a host
CHECK_SHAPE: dict[str, Shape] = {
    "time_s": moment,
    "state": line,
    **dict.fromkeys(("why", "healed"), OptionalField(line, "")),
    **dict.fromkeys(
        ("tok_per_s", "baseline_tok_per_s", "mem_available_bytes", "temperature_c", "power_w"),
        OptionalField((None, float), None),
    ),
    "every_s": OptionalField(moment, 0.0),
}


@dataclass(frozen=True, slots=True)
class Period:
    """A period of one state; times are seconds since the epoch."""

    state: str
    #: first reason in its checks
    why: str
    start_s: float
    end_s: float
    #: False if its last check expired before the next one
    is_end_known: bool = True


def merge_periods(checks: Sequence[Check], until_s: float) -> list[Period]:
    """Return the periods with a known state, oldest first, merging adjacent periods with the same state.

    Args:
        checks: checks, oldest first.
        until_s: end of the last period, in seconds since the epoch.
    """
    periods: list[Period] = []
    for period in _iter_validity_periods(checks, until_s):
        previous = periods[-1] if periods else None
        if previous is not None and previous.is_end_known and previous.state == period.state:
            periods[-1] = Period(
                period.state, previous.why or period.why, previous.start_s, period.end_s, period.is_end_known
            )
        else:
            periods.append(period)
    return periods


def _iter_validity_periods(checks: Sequence[Check], until_s: float) -> Iterator[Period]:
    """Yield the period in which each check is valid."""
    for check, next_s in zip(checks, [*(check.time_s for check in checks[1:]), until_s], strict=False):
        expiry_s = check.time_s + validity_s(check.every_s)
        yield Period(check.state, check.why, check.time_s, min(next_s, expiry_s), next_s <= expiry_s)


def total_seconds(periods: Sequence[Period], state: str = "") -> float:
    """Return the total length of the periods in seconds, optionally only of those with this state."""
    return sum(period.end_s - period.start_s for period in periods if state in ("", period.state))


@dataclass(frozen=True, slots=True)
class Span:
    """The summary of the checks in a span of time."""

    start_s: float
    #: number of checks
    checks: int
    #: worst state, and its reason
    state: str
    why: str
    #: median decode rate; None if unknown
    tok_per_s: float | None
    #: lowest available memory; None if unknown
    memory_gib: float | None
    #: highest temperature; None if unknown
    temperature_c: float | None
    #: distinct values of `healed` in the checks
    healed: str = ""


@dataclass(frozen=True, slots=True)
class Episode:
    """A period in which the host was not ok, up to the first check with another state."""

    state: str
    why: str
    start_s: float
    #: None if it has not ended
    end_s: float | None
    #: False if the state after it is unknown
    is_end_known: bool = True


@dataclass(frozen=True)
class HostChecks:
    """The checks of a host in the period of the report."""

    name: str
    since_s: float
    until_s: float
    #: length of each span
    span_s: float = 0.0
    checks: Sequence[Check] = ()
    spans: Sequence[Span] = ()
    #: reason why there are no checks
    error: str = ""
    #: exit code of that error
    error_exit: int = 0

    @property
    def periods(self) -> list[Period]:
        """The periods with a known state."""
        return merge_periods(self.checks, self.until_s)

    @property
    def episodes(self) -> list[Episode]:
        """The periods in which the host was not ok. A change from one bad state to another begins a new one."""
        return [
            Episode(
                period.state,
                period.why,
                period.start_s,
                None if period.end_s >= self.until_s else period.end_s,
                period.is_end_known,
            )
            for period in self.periods
            if period.state != "ok"
        ]

    @property
    def ok_share(self) -> float | None:
        """The share of the known time in which the host was ok."""
        known_s = total_seconds(self.periods)
        return total_seconds(self.periods, "ok") / known_s if known_s else None

    @property
    def unknown_share(self) -> float:
        """The share of the total time in which the state is unknown."""
        return 1 - total_seconds(self.periods) / max(1.0, self.until_s - self.since_s)

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return a metric as (start, value) pairs, without the spans that have no value."""
        values = [(span.start_s, getattr(span, name)) for span in self.spans]
        return [(start_s, value) for start_s, value in values if value is not None]

    @property
    def baseline_tok_per_s(self) -> float | None:
        """The latest baseline."""
        return next((check.baseline_tok_per_s for check in reversed(self.checks) if check.baseline_tok_per_s), None)


def parse_host_checks(name: str, event: Mapping[str, Any], since_s: float, until_s: float) -> HostChecks:
    """Return the checks in a host's `checks` event (runner/status.py), ignoring unknown fields. Raises ValueError if invalid."""
    rows = [dict(zip(event["fields"], row, strict=False)) for row in event["rows"]]
    checks = [build_dataclass(Check, row) for row in validate(rows, [CHECK_SHAPE], "a check")]
    checks = sorted((check for check in checks if since_s <= check.time_s <= until_s), key=lambda check: check.time_s)
    span_s = span_length_s(until_s - since_s, checks)
    return HostChecks(name, since_s, until_s, span_s, checks, list(summarize_spans(checks, span_s)))


def span_length_s(total_s: float, checks: Sequence[Check]) -> float:
    """Return the length of a span in seconds: at most MAX_SPANS spans, none shorter than the median interval between checks."""
    gaps = [later.time_s - earlier.time_s for earlier, later in itertools.pairwise(checks)]
    min_s = max(total_s / MAX_SPANS, statistics.median(gaps) if gaps else 0.0)
    return float(next((length_s for length_s in SPAN_LENGTHS_S if length_s >= min_s), 86400 * math.ceil(min_s / 86400)))


def summarize_spans(checks: Iterable[Check], span_s: float) -> Iterable[Span]:
    """Yield the spans that contain checks, oldest first. They begin at multiples of span_s."""
    for start, group in itertools.groupby(checks, key=lambda check: check.time_s // span_s * span_s):
        span_checks = list(group)
        worst_check = max(span_checks, key=lambda check: severity(check.state))
        rates, memory, temperatures = (
            [value for check in span_checks if (value := getattr(check, name)) is not None]
            for name in ("tok_per_s", "mem_available_bytes", "temperature_c")
        )
        yield Span(
            start_s=start,
            checks=len(span_checks),
            state=worst_check.state,
            why=worst_check.why,
            tok_per_s=statistics.median(rates) if rates else None,
            memory_gib=min(memory) / GIB if memory else None,
            temperature_c=max(temperatures, default=None),
            healed="; ".join(dict.fromkeys(check.healed for check in span_checks if check.healed)),
        )

"""Clients that are measured beside each other, and what each of them says of its streams."""

from __future__ import annotations

from dataclasses import dataclass

#: of each stream
TOKENS = 128


@dataclass(frozen=True)
class Said:
    """A client's own words about some streams, and what it cost.

    gaps_s: between chunks, pooled over all streams; None from a tool that keeps none. itl_p99_s: the figure it calls so.
    largest_s: the largest latency between tokens that it tells. cpu_s: of all its processes, from start to end.
    request_cpu_s: of the requests alone, None where a tool can't be asked for it.
    """

    ttft_s: list[float]
    gaps_s: list[float] | None
    itl_p99_s: float
    largest_s: float
    tok_per_s: float
    cpu_s: float
    request_cpu_s: float | None = None


class Absent(Exception):
    """A client that is not here, and what would bring it."""

"""Clients that are compared, and their own reports on their streams."""

from dataclasses import dataclass

#: of each stream
TOKENS = 128


@dataclass(frozen=True)
class Report:
    """A client's own report on some streams, and its cost.

    gaps_s: between chunks of all streams; None if the client does not keep them. itl_p99_s: the figure of that name.
    largest_s: the largest reported latency between tokens. cpu_s: of all its processes, from start to end.
    request_cpu_s: of the requests alone; None if unknown.
    """

    ttft_s: list[float]
    gaps_s: list[float] | None
    itl_p99_s: float
    largest_s: float
    tok_per_s: float
    cpu_s: float
    request_cpu_s: float | None = None


class Absent(Exception):
    """A client that is not installed, and how to install it."""

"""The clients that are compared, and their own reports on their streams."""

from dataclasses import dataclass

#: number of tokens of each stream
TOKENS = 128


@dataclass(frozen=True)
class Report:
    """A client's own report on its streams, and its cost.

    Attributes:
        gaps_s: seconds between chunks, of all streams; None if the client does not keep them.
        itl_p99_s: the client's figure of that name.
        largest_s: the largest reported latency between tokens.
        cpu_s: CPU seconds of all its processes, from start to end.
        request_cpu_s: CPU seconds of the requests alone; None if unknown.
    """

    ttft_s: list[float]
    gaps_s: list[float] | None
    itl_p99_s: float
    largest_s: float
    tok_per_s: float
    cpu_s: float
    request_cpu_s: float | None = None


class Absent(Exception):
    """A client is not installed; the message says how to install it."""

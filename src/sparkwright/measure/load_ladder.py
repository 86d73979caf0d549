"""Steps of a load proof: prompts of growing length, then the longest with the promised concurrency. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkwright.units import gib

#: parts of the context that are sent one after the other, before all streams at once
PARTS = (8, 4, 2, 1)
SHORTEST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: number and length of simultaneous prompts, and the outcome."""

    context: int
    streams: int
    #: median decode rate of one stream; None if there were too few tokens
    tok_per_s: float | None = None
    #: the longest time to a first token, seconds
    ttft_s: float | None = None
    #: lowest MemAvailable during the step
    lowest_bytes: int | None = None

    def __str__(self) -> str:
        left = f"{gib(self.lowest_bytes)} GiB left" if self.lowest_bytes is not None else ""
        rate = f"{self.tok_per_s:.1f} tok/s" if self.tok_per_s else ""
        first = f"TTFT {self.ttft_s:.1f} s" if self.ttft_s is not None else ""
        return f"{self.context} x {self.streams}: {', '.join(filter(None, (left, rate, first)))}"


def ladder(context: int, streams: int) -> list[Rung]:
    """Return the steps up to a context with this many streams, the shortest first."""
    lengths = dict.fromkeys(max(SHORTEST_TOKENS, context // part) for part in PARTS)
    return [Rung(tokens, 1) for tokens in lengths] + ([Rung(context, streams)] if streams > 1 else [])


def shown(rows: object) -> str:
    """Return the last of the recorded steps as text, or an empty string if there is none."""
    last = rows[-1] if isinstance(rows, list) and rows else None
    if not isinstance(last, Mapping) or not isinstance(last.get("context"), int):
        return ""
    names = ("context", "streams", "tok_per_s", "ttft_s", "lowest_bytes")
    values = {name: last.get(name) for name in names}
    numbers = all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values.values()
    )
    return f"survives {Rung(**values)}" if numbers else ""  # type: ignore[arg-type]

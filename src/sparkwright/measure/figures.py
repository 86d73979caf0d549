"""Latency, gap, stall and rate figures of many streams.

A percentile of per-request means hides stalls, and so does a p99 over few gaps. Therefore the largest gap, the number of stalls
and their duration are reported in addition to the percentiles.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.measure.stream import Stream

#: multiple of the median gap above which a gap is a stall
STALL_FACTOR = 5.0
#: share of the mean gap below which the median gap is meaningless, because a busy client or server makes chunks arrive together
MIN_MEDIAN_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class TimeSpread:
    """Count, mean, p50, p99 and maximum of a set of times, in seconds."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> TimeSpread | None:
        """Return the spread of the values, or None if there are none."""
        if not values:
            return None
        sorted_values = sorted(values)
        p50, p99 = percentile(sorted_values, 50), percentile(sorted_values, 99)
        return cls(len(sorted_values), statistics.fmean(sorted_values), p50, p99, sorted_values[-1])

    def to_json(self, name: str) -> dict[str, Any]:
        """Return the figures in milliseconds and the count, under keys that begin with `name`: ttft_p50_ms, ttft_count."""
        kinds = {"mean": self.mean, "p50": self.p50, "p99": self.p99, "max": self.max}
        times = {f"{name}_{kind}_ms": round(value * 1000, 3) for kind, value in kinds.items()}
        return {f"{name}_count": self.count, **times}


@dataclass(frozen=True, slots=True)
class Figures:
    """The latency and throughput of a set of streams."""

    streams: int
    tokens: int
    prompt_tokens: int
    wall_s: float
    ttft: TimeSpread | None
    #: gaps between chunks, pooled over all streams
    itl: TimeSpread | None
    tpot: TimeSpread | None
    e2el: TimeSpread | None
    largest_gap_s: float
    stalls: int
    #: sum of the gaps that are stalls
    stall_s: float
    #: all tokens divided by `wall_s`, the time from the first request to the last token
    tok_per_s: float
    #: median decode rate of a stream
    stream_tok_per_s: float | None
    approximate: bool
    #: number of streams whose tokens came in so few chunks that only their total time is known
    bursts: int = 0

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "streams": self.streams,
            "output_tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "wall_s": round(self.wall_s, 4),
            "output_tok_per_s": round(self.tok_per_s, 3),
            "stream_tok_per_s": round(self.stream_tok_per_s, 3) if self.stream_tok_per_s else None,
            "largest_gap_ms": round(self.largest_gap_s * 1000, 3),
            "stalls": self.stalls,
            "stall_ms": round(self.stall_s * 1000, 3),
            "approximate": self.approximate,
            **({"streams_in_bursts": self.bursts} if self.bursts else {}),
        }
        for name in ("ttft", "itl", "tpot", "e2el"):
            spread: TimeSpread | None = getattr(self, name)
            data.update(spread.to_json(name) if spread else {})
        return data


def summarize(streams: Sequence[Stream]) -> Figures:
    """Return the figures of finished streams. Streams without tokens are only counted in `streams`."""
    streams_with_tokens = [stream for stream in streams if stream.points]
    gaps = [gap for stream in streams_with_tokens for gap in stream.gaps_s]
    itl = TimeSpread.from_values(gaps)
    limit_s = STALL_FACTOR * _typical_gap_s(itl) if itl else math.inf
    stalls = [gap for gap in gaps if gap > limit_s]
    began_s = min((stream.sent_s for stream in streams_with_tokens), default=0.0)
    wall_s = max((stream.sent_s + stream.points[-1][0] for stream in streams_with_tokens), default=0.0) - began_s
    tokens = sum(stream.tokens for stream in streams_with_tokens)
    rates = [stream.tok_per_s for stream in streams_with_tokens if stream.tok_per_s]
    return Figures(
        streams=len(streams),
        tokens=tokens,
        prompt_tokens=sum(stream.prompt_tokens for stream in streams_with_tokens),
        wall_s=wall_s,
        ttft=TimeSpread.from_values([stream.ttft_s for stream in streams_with_tokens if stream.ttft_s is not None]),
        itl=itl,
        tpot=TimeSpread.from_values([stream.tpot_s for stream in streams_with_tokens if stream.tpot_s]),
        e2el=TimeSpread.from_values([stream.points[-1][0] for stream in streams_with_tokens]),
        largest_gap_s=max(gaps, default=0.0),
        stalls=len(stalls),
        stall_s=sum(stalls),
        tok_per_s=tokens / wall_s if wall_s > 0 else 0.0,
        stream_tok_per_s=statistics.median(rates) if rates else None,
        approximate=any(stream.approximate for stream in streams_with_tokens),
        bursts=sum(stream.in_bursts for stream in streams_with_tokens),
    )


def _typical_gap_s(itl: TimeSpread) -> float:
    """Return the median gap, or the mean if several chunks arrive at once so that half of the gaps are zero."""
    return itl.p50 if itl.p50 >= itl.mean * MIN_MEDIAN_SHARE else itl.mean


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """Return a percentile, with linear interpolation as in NumPy.

    Args:
        sorted_values: values in ascending order, not empty.
        percent: percentage from 0 to 100.
    """
    position = (len(sorted_values) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (sorted_values[high] - sorted_values[low]) * (position - low)

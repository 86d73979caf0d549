"""The throughput smoke test, and when a figure is a regression.

One discarded warm-up, then the median of three runs; four more when that is unclear. Thresholds: the simulation in
docs/measuring.md (false alarms under 0.6 % with noise of 4 %).
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparkwright.engine import endpoints
from sparkwright.measure import stream

RUNS = 3
MORE_RUNS = 4
CAP_S = 4.0
WARM_UP_CAP_S = 8.0
FLOOR = 0.5
MIN_TOLERANCE, MAX_TOLERANCE = 0.10, 0.20


@dataclass(frozen=True)
class Baseline:
    """What this host gave before, for the same image, model and arguments. median and mad in tok/s."""

    median: float
    mad: float

    @classmethod
    def of(cls, rates: Sequence[float]) -> Baseline:
        """From the runs of a verified server."""
        median = statistics.median(rates)
        return cls(median, statistics.median(abs(rate - median) for rate in rates))

    @property
    def tolerance(self) -> float:
        """How far below the median is still noise, as a share of it."""
        return min(max(4 * 1.4826 * self.mad / self.median, MIN_TOLERANCE), MAX_TOLERANCE)


@dataclass
class Measured:
    """rates: tok/s of each run. verdict: proved, new baseline, misconfigured, regression, inconclusive."""

    rates: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    tokens: int = 0
    approximate: bool = False
    verdict: str = ""
    reason: str = ""

    @property
    def tok_per_s(self) -> float:
        """Median of the runs."""
        return statistics.median(self.rates) if self.rates else 0.0


def measure(
    base_url: str,
    model: str,
    *,
    expected: float | None,
    baseline: Baseline | None,
    tokens: int,
    api_key: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Measure one stream's decode rate and judge it. Raises stream.StreamError."""
    result = Measured()
    wanted = tokens * (RUNS + 1)

    def one(cap_s: float) -> stream.Stream:
        before = result.tokens
        body = endpoints.measured_stream(model, prompt(), tokens)
        got = stream.run(
            base_url, body, api_key=api_key, cap_s=cap_s, on_chunk=lambda n: progress(min(before + n, wanted), wanted)
        )
        result.tokens += got.tokens
        result.approximate = result.approximate or got.approximate
        return got

    def take(count: int) -> None:
        for _ in range(count):
            got = one(CAP_S)
            if got.tok_per_s is not None:
                result.rates.append(got.tok_per_s)
                result.ttfts_s.append(got.ttft_s or 0.0)

    one(WARM_UP_CAP_S)
    take(RUNS)
    result.verdict, result.reason = judge(result.rates, expected, baseline)
    if result.verdict == "unclear":
        take(MORE_RUNS)
        result.verdict, result.reason = judge(result.rates, expected, baseline)
    return result


def judge(rates: Sequence[float], expected: float | None, baseline: Baseline | None) -> tuple[str, str]:
    """The verdict on some runs, and its reason. "unclear" asks for more runs; with seven it is never unclear."""
    if not rates:
        return "misconfigured", "no run gave two tokens"
    median = statistics.median(rates)
    if expected and median < FLOOR * expected:
        return "misconfigured", f"{median:.1f} tok/s is below half of the {expected:g} that the recipe expects"
    if baseline is None:
        return "new baseline", "the first measurement of this image, model and arguments on this host"
    base, tolerance = baseline.median, baseline.tolerance
    against = f"{median:.1f} tok/s against {base:.1f} before"
    if len(rates) > RUNS:
        return ("regression", against) if median < (1 - tolerance) * base else ("proved", against)
    if median < (1 - 2.5 * tolerance) * base:
        return "regression", against
    return ("proved", against) if median >= (1 - tolerance / 2) * base else ("unclear", against)


def prompt() -> str:
    """Fresh random words first, so that no prefix cache can help."""
    return f"{secrets.token_hex(16)} Write a long story about a lighthouse keeper."

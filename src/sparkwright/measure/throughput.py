"""The throughput smoke test and its criteria for a regression.

After a warm-up, it takes the median of three runs, or of seven if the result is unclear. The thresholds come from the simulation
in docs/measuring.md (false alarms under 0.6 % with noise of 4 %). Each run is compared with the baseline of its prompt, because
with speculation the rate depends on the prompt.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.engines.http import Http
from sparkwright.measure import stream
from sparkwright.measure.http_probe import Target
from sparkwright.measure.server_client import ServerClient

Verdict = Literal["proved", "new baseline", "not compared", "regression", "misconfigured", "invalid", "unclear"]

#: prompts, used in turn by the runs
PROMPTS: dict[str, str] = {
    "prose": "Write a long story about a lighthouse keeper who counts ships.",
    "code": "Write a Python module with a binary heap, a trie and a graph search, each with its docstring.",
    "reasoning": "A ferry, a bus and a bicycle meet every 84, 36 and 63 minutes. Explain step by step when, and check it.",
}
PROMPT_SET = 1
#: figures are only comparable if they were measured by the same version of this client
CLIENT_VERSION = 2

#: number of runs (docs/measuring.md)
MIN_RUNS = 3
#: number of further runs if the result is unclear
EXTRA_RUNS = 4
RUN_CAP_S = 4.0
#: number of runs for a baseline, each of at most BASELINE_TOKENS; with speculation each prompt is used twice
BASELINE_RUNS = MIN_RUNS + 2
BASELINE_RUNS_SPECULATING = 2 * MIN_RUNS
BASELINE_TOKENS = 80
WARM_UP_TOKENS = 32
WARM_UP_CAP_S = 8.0

#: minimum rate as a share of the recipe's expectation
MIN_EXPECTED_SHARE = 0.5
#: limits on the tolerated drop below the baseline
MIN_TOLERANCE, MAX_TOLERANCE = 0.10, 0.20
#: four standard deviations, expressed in median absolute deviations
TOLERANCE_FACTOR = 4 * 1.4826


@dataclass(frozen=True, slots=True)
class Run:
    """One measured request."""

    #: name of the prompt in PROMPTS
    prompt: str
    tok_per_s: float
    ttft_s: float
    gaps_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """The decode rates of a verified server, with which later ones are compared."""

    #: median tok/s by prompt
    rates: Mapping[str, float]
    #: median absolute deviation as a share of the median
    deviation: float
    runs: int
    #: GPU clock during the runs; None if unknown
    clock_mhz: float | None = None
    #: acceptance of speculation by position; empty if not counted
    acceptance: tuple[float, ...] = ()

    @classmethod
    def from_runs(
        cls,
        runs: Sequence[Run],
        *,
        by_prompt: bool = False,
        clock_mhz: float | None = None,
        acceptance: Sequence[float] = (),
    ) -> Baseline:
        """Return the baseline from a verified server's runs. by_prompt: keep a rate per prompt, which speculation requires."""
        names = {run.prompt for run in runs}
        overall_rate = statistics.median(run.tok_per_s for run in runs)
        rates = {
            name: statistics.median(run.tok_per_s for run in runs if run.prompt == name) if by_prompt else overall_rate
            for name in names
        }
        shares = [run.tok_per_s / rates[run.prompt] for run in runs]
        deviation = statistics.median(abs(share - 1) for share in shares)
        return cls(rates, deviation, len(runs), clock_mhz, tuple(acceptance))

    @property
    def median(self) -> float:
        """The median rate over the prompts."""
        return statistics.median(self.rates.values())

    @property
    def tolerance(self) -> float:
        """Tolerated drop below the baseline, as a share of it."""
        return min(max(TOLERANCE_FACTOR * self.deviation, MIN_TOLERANCE), MAX_TOLERANCE)

    def share(self, run: Run) -> float:
        """Return a run's rate as a share of the baseline."""
        return run.tok_per_s / self.rates.get(run.prompt, self.median)

    def to_json(self) -> dict[str, Any]:
        return {
            "tok_per_s": dict(self.rates),
            "deviation": self.deviation,
            "runs": self.runs,
            "clock_mhz": self.clock_mhz,
            **({"acceptance": list(self.acceptance)} if self.acceptance else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        acceptance = tuple(data.get("acceptance") or ())
        return cls(data["tok_per_s"], data["deviation"], data["runs"], data.get("clock_mhz"), acceptance)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The expected and the maximum decode rate of a single stream."""

    #: rate that the recipe expects, in tok/s; None if it expects none
    expected: float | None = None
    #: rate that the memory bandwidth allows without speculation, in tok/s; None if unknown
    ceiling: float | None = None
    speculation: bool = False

    @property
    def baseline_runs(self) -> int:
        return BASELINE_RUNS_SPECULATING if self.speculation else BASELINE_RUNS


@dataclass
class Measurements:
    """Requests that were measured one after another."""

    #: requests with a decode rate
    runs: list[Run] = field(default_factory=list)
    #: rate over the whole request, in tok/s, of each request whose tokens came in bursts
    burst_rates: list[float] = field(default_factory=list)
    #: all generated tokens, including the warm-up
    tokens: int = 0
    #: thinking tokens before the first other token
    thinking_tokens: int = 0
    #: number of requests that the client ended
    capped: int = 0
    #: True if chunks were counted instead of tokens
    approximate: bool = False
    prompt_tokens: int = 0

    @property
    def in_bursts(self) -> bool:
        """True if most requests came in bursts, so that there is no decode rate."""
        return len(self.burst_rates) > len(self.runs)

    @property
    def only_thinking(self) -> bool:
        """True if the streams contained nothing but thinking."""
        return 0 < self.tokens <= self.thinking_tokens

    @property
    def decoding_s(self) -> float | None:
        """The median decoding time of a run in seconds."""
        return statistics.median(sum(run.gaps_s) for run in self.runs) if self.runs else None

    def add_tokens(self, measured_stream: stream.Stream) -> None:
        """Count the tokens of a stream, without adding a run."""
        self.tokens += measured_stream.tokens
        self.thinking_tokens += (
            measured_stream.tokens
            if measured_stream.points and measured_stream.thinking_tokens >= measured_stream.points[-1][1]
            else measured_stream.thinking_tokens
        )
        self.capped += measured_stream.capped
        self.approximate = self.approximate or measured_stream.approximate
        self.prompt_tokens += measured_stream.prompt_tokens

    def add_run(self, name: str, measured_stream: stream.Stream) -> None:
        """Count a stream and add a run for it if it has a decode rate. name: name of the prompt."""
        self.add_tokens(measured_stream)
        if measured_stream.in_bursts and measured_stream.request_tok_per_s:
            self.burst_rates.append(measured_stream.request_tok_per_s)
        elif measured_stream.tok_per_s is not None:
            self.runs.append(
                Run(name, measured_stream.tok_per_s, measured_stream.ttft_s or 0.0, tuple(measured_stream.gaps_s))
            )


@dataclass
class SmokeResult(Measurements):
    """Measured requests with the verdict of `evaluate_runs`."""

    verdict: Verdict = "unclear"
    reason: str = ""
    note: str = ""  # empty if there is none

    @property
    def tok_per_s(self) -> float:
        """The median rate of the runs; 0 without runs."""
        return statistics.median(run.tok_per_s for run in self.runs) if self.runs else 0.0

    @property
    def ttft_s(self) -> float | None:
        """The median time to first token."""
        return statistics.median(run.ttft_s for run in self.runs) if self.runs else None

    @property
    def gap_s(self) -> float | None:
        """The median gap between chunks."""
        gaps = [gap for run in self.runs for gap in run.gaps_s]
        return statistics.median(gaps) if gaps else None


def measure_decode_rate(
    target: Target,
    *,
    bounds: Bounds,
    baseline: Baseline | None,
    tokens: int = defaults.SMOKE_TOKEN_COUNT,
    progress: Callable[[int, int], None] = lambda done, total: None,
    on_decoding: Callable[[], None] = lambda: None,
) -> SmokeResult:
    """Measure the decode rate of a single stream and evaluate it. Raises stream.StreamError.

    Args:
        bounds: expected and maximum rate.
        baseline: baseline of the server; None if it has none yet.
        tokens: number of tokens per run.
        progress: called with the number of chunks so far and the estimated total.
        on_decoding: called after the warm-up.
    """
    result = SmokeResult()
    run_tokens = tokens if baseline else min(tokens, BASELINE_TOKENS)
    total_tokens = min(tokens, WARM_UP_TOKENS) + run_tokens * (MIN_RUNS if baseline else bounds.baseline_runs)
    server = ServerClient(target)

    def send(name: str, count: int, cap_s: float) -> stream.Stream:
        tokens_before, request = result.tokens, server.build_request(build_prompt(name), count)
        return server.run(
            request, cap_s=cap_s, on_chunk=lambda n: progress(min(tokens_before + n, total_tokens), total_tokens)
        )

    def take_runs(count: int) -> None:
        for _ in range(count):
            name = tuple(PROMPTS)[(len(result.runs) + len(result.burst_rates)) % len(PROMPTS)]
            result.add_run(name, send(name, run_tokens, RUN_CAP_S))

    result.add_tokens(send("prose", min(tokens, WARM_UP_TOKENS), WARM_UP_CAP_S))
    on_decoding()
    take_runs(MIN_RUNS)
    if result.in_bursts:
        result.runs.clear()
        result.verdict, result.reason = evaluate_bursts(result.burst_rates, bounds)
        return result
    result.verdict, result.reason, result.note = evaluate_runs(result.runs, bounds, baseline)
    if result.verdict == "unclear":
        take_runs(EXTRA_RUNS if baseline else bounds.baseline_runs - MIN_RUNS)
        result.verdict, result.reason, result.note = evaluate_runs(result.runs, bounds, baseline, is_final=True)
    return result


def evaluate_runs(
    runs: Sequence[Run], bounds: Bounds, baseline: Baseline | None, *, is_final: bool = False
) -> tuple[Verdict, str, str]:
    """Return the verdict on the runs, the reason, and a note, which may be empty.

    The verdict "unclear" means that more runs are needed. With `is_final` it is never returned.
    """
    if not runs:
        return "misconfigured", "no run generated two tokens", ""
    median = statistics.median(run.tok_per_s for run in runs)
    if bounds.ceiling and not bounds.speculation and median > bounds.ceiling:
        message = f"{median:.1f} tok/s exceeds the {bounds.ceiling:.0f} that memory bandwidth allows"
        return "invalid", f"{message} without speculative decoding: tokens are miscounted, or answers are cached", ""
    if bounds.expected and median < MIN_EXPECTED_SHARE * bounds.expected:
        message = f"{median:.1f} tok/s is below half of the {bounds.expected:g} expected by the recipe"
        return "misconfigured", message, ""
    if baseline is None:
        return ("new baseline" if is_final else "unclear"), "no earlier measurement", ""
    share, tolerance = statistics.median(baseline.share(run) for run in runs), baseline.tolerance
    comparison = f"{median:.1f} tok/s against {baseline.median:.1f} before"
    note = "faster than the baseline: due to a cache, speculation or new kernels?" if share > 1 + tolerance else ""
    if is_final:
        return ("regression" if share < 1 - tolerance else "proved"), comparison, note
    if share < 1 - 2.5 * tolerance:
        return "regression", comparison, ""
    return ("proved" if share >= 1 - tolerance / 2 else "unclear"), comparison, note


def evaluate_bursts(rates: Sequence[float], bounds: Bounds) -> tuple[Verdict, str]:
    """Return the verdict on requests whose tokens came in bursts, and the reason. They are not compared with a baseline.

    rates: rate over the whole of each request, in tok/s.
    """
    median = statistics.median(rates)
    reason = (
        "the server sends its tokens in bursts (because of a reasoning parser or a proxy), so the decode rate is unknown: "
        f"{median:.1f} tok/s from the request to the last token"
    )
    if bounds.expected and median < MIN_EXPECTED_SHARE * bounds.expected:
        return "misconfigured", f"{reason}, below half of the {bounds.expected:g} expected by the recipe"
    return "not compared", reason


def has_speculation(http: Http, key: Mapping[str, Any]) -> bool:
    """Return True if the command in a baseline's key enables speculation."""
    return http.speculates([str(word) for word in key.get("command") or ()])


def build_prompt(name: str = "prose") -> str:
    """Return a prompt that begins with random text, so that no prefix cache contains it."""
    return f"{secrets.token_hex(16)} {PROMPTS[name]}"

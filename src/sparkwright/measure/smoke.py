"""The throughput smoke test and its criteria for a regression.

It discards a warm-up and takes the median of three runs, or of seven if the result is unclear. The thresholds come from the
simulation in docs/measuring.md (false alarms under 0.6 % with noise of 4 %). Runs are compared as shares of the baseline for
their prompt, because with speculation the rate depends on the prompt.
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
from sparkwright.measure.server_client import ServerClient

Verdict = Literal["proved", "new baseline", "not compared", "regression", "misconfigured", "invalid", "unclear"]

#: prompts, each of which is used once in the first three runs
PROMPTS: dict[str, str] = {
    "prose": "Write a long story about a lighthouse keeper who counts ships.",
    "code": "Write a Python module with a binary heap, a trie and a graph search, each with its docstring.",
    "reasoning": "A ferry, a bus and a bicycle meet every 84, 36 and 63 minutes. Explain step by step when, and check it.",
}
PROMPT_SET = 1
CLIENT_VERSION = 2  # version of this client, whose figures are only comparable with those of the same version

#: number of runs, explained in docs/measuring.md and the module's docstring
MIN_RUNS = 3
EXTRA_RUNS = 4
RUN_CAP_S = 4.0
#: number of runs for a baseline, which are shorter; with speculation each prompt is used twice
BASELINE_RUNS = MIN_RUNS + 2
BASELINE_RUNS_SPECULATING = 2 * MIN_RUNS
BASELINE_TOKENS = 80
WARM_UP_TOKENS = 32
WARM_UP_CAP_S = 8.0

MIN_EXPECTED_SHARE = 0.5
MIN_TOLERANCE, MAX_TOLERANCE = 0.10, 0.20
#: four standard deviations in units of the median absolute deviation
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
    """The rates that this host has reached before."""

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
    def of(
        cls,
        runs: Sequence[Run],
        *,
        by_prompt: bool = False,
        clock_mhz: float | None = None,
        acceptance: Sequence[float] = (),
    ) -> Baseline:
        """Return the baseline from a verified server's runs.

        Args:
            runs: the measured runs.
            by_prompt: keep a rate per prompt, which speculation requires.
            clock_mhz: GPU clock during the runs.
            acceptance: acceptance of speculation by position.
        """
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
        """The median over the prompts in tok/s."""
        return statistics.median(self.rates.values())

    @property
    def tolerance(self) -> float:
        """The share by which a run may fall below the baseline and still count as noise."""
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
    """The expected and the possible decode rate of a single stream."""

    #: rate that the recipe expects, in tok/s
    expected: float | None = None
    #: rate that the memory bandwidth allows without speculation, in tok/s
    ceiling: float | None = None
    speculation: bool = False

    @property
    def baseline_runs(self) -> int:
        return BASELINE_RUNS_SPECULATING if self.speculation else BASELINE_RUNS


@dataclass
class Measurements:
    """Measured requests, one stream at a time."""

    runs: list[Run] = field(default_factory=list)  # with a decode rate
    burst_rates: list[float] = field(default_factory=list)  # rates of requests in bursts: tokens over their total time
    tokens: int = 0  # all generated tokens, including the warm-up
    thinking_tokens: int = 0  # thinking tokens before the first other token
    capped: int = 0  # requests that the client ended
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

    def add_tokens(self, measured: stream.Stream) -> None:
        """Add the tokens of a stream, whether or not it counts as a run."""
        self.tokens += measured.tokens
        self.thinking_tokens += (
            measured.tokens if measured.points and measured.thought >= measured.points[-1][1] else measured.thought
        )
        self.capped += measured.capped
        self.approximate = self.approximate or measured.approximate
        self.prompt_tokens += measured.prompt_tokens

    def add_run(self, name: str, measured: stream.Stream) -> None:
        """Add a stream for a prompt. A stream without a decode rate is not a run."""
        self.add_tokens(measured)
        if measured.in_bursts and measured.request_tok_per_s:
            self.burst_rates.append(measured.request_tok_per_s)
        elif measured.tok_per_s is not None:
            self.runs.append(Run(name, measured.tok_per_s, measured.ttft_s or 0.0, tuple(measured.gaps_s)))


@dataclass
class SmokeResult(Measurements):
    """Measured requests with the verdict of `evaluate_runs`."""

    verdict: Verdict = "unclear"
    reason: str = ""
    note: str = ""

    @property
    def tok_per_s(self) -> float:
        """The median rate of the runs."""
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
    http: Http,
    base_url: str,
    model: str,
    *,
    bounds: Bounds,
    baseline: Baseline | None,
    tokens: int = defaults.SMOKE_TOKENS,
    api_key: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    on_decoding: Callable[[], None] = lambda: None,
) -> SmokeResult:
    """Measure the decode rate of a single stream and evaluate it. Raises stream.StreamError.

    Args:
        http: the engine's HTTP API.
        base_url: URL of the server.
        model: served name.
        bounds: expected and possible rate.
        baseline: baseline of this host; None if there is none.
        tokens: number of tokens per run.
        api_key: key of the server.
        progress: called with the number of chunks so far and the estimated total.
        on_decoding: called when the warm-up is over.
    """
    result = SmokeResult()
    run_tokens = tokens if baseline else min(tokens, BASELINE_TOKENS)
    total_tokens = min(tokens, WARM_UP_TOKENS) + run_tokens * (MIN_RUNS if baseline else bounds.baseline_runs)
    sender = ServerClient(http, model, base_url, api_key)

    def send(name: str, count: int, cap_s: float) -> stream.Stream:
        before, request = result.tokens, sender.request(build_prompt(name), count)
        return sender.run(
            request, cap_s=cap_s, on_chunk=lambda n: progress(min(before + n, total_tokens), total_tokens)
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

    "unclear" requests more runs, and is never returned if these are the last.
    """
    if not runs:
        return "misconfigured", "no run returned two tokens", ""
    median = statistics.median(run.tok_per_s for run in runs)
    if bounds.ceiling and not bounds.speculation and median > bounds.ceiling:
        message = f"{median:.1f} tok/s exceeds the {bounds.ceiling:.0f} that memory bandwidth allows"
        return "invalid", f"{message} without speculative decoding: wrong count, or cached answers", ""
    if bounds.expected and median < MIN_EXPECTED_SHARE * bounds.expected:
        message = f"{median:.1f} tok/s is below half of the {bounds.expected:g} expected by the recipe"
        return "misconfigured", message, ""
    if baseline is None:
        message = "no earlier measurement"
        return ("new baseline" if is_final else "unclear"), message, ""
    share, tolerance = statistics.median(baseline.share(run) for run in runs), baseline.tolerance
    comparison = f"{median:.1f} tok/s against {baseline.median:.1f} before"
    note = "faster than its baseline: a cache, speculation or new kernels?" if share > 1 + tolerance else ""
    if is_final:
        return ("regression" if share < 1 - tolerance else "proved"), comparison, note
    if share < 1 - 2.5 * tolerance:
        return "regression", comparison, ""
    return ("proved" if share >= 1 - tolerance / 2 else "unclear"), comparison, note


def evaluate_bursts(rates: Sequence[float], bounds: Bounds) -> tuple[Verdict, str]:
    """Return the verdict on requests whose tokens came in bursts, and the reason. There is no baseline for them.

    Args:
        rates: tokens over the total time of each request, in tok/s.
        bounds: bounds of the recipe; a request must reach at least half of the expected rate.
    """
    median = statistics.median(rates)
    reason = (
        "the server sends its tokens in bursts (as a reasoning parser or a proxy does), so no decode rate can be determined: "
        f"{median:.1f} tok/s from the request to the last token"
    )
    if bounds.expected and median < MIN_EXPECTED_SHARE * bounds.expected:
        return "misconfigured", f"{reason}, below half of the {bounds.expected:g} expected by the recipe"
    return "not compared", reason


def has_speculation(http: Http, key: Mapping[str, Any]) -> bool:
    """Return True if the engine of a baseline's key generates with speculation."""
    return http.speculates([str(word) for word in key.get("command") or ()])


def build_prompt(name: str = "prose") -> str:
    """Return a prompt that begins with new random words, so that no prefix cache can help."""
    return f"{secrets.token_hex(16)} {PROMPTS[name]}"

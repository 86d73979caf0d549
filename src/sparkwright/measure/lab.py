"""Measure one load on a server, and return the result as JSON whose keys include the units."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkwright.engines import http as engine_http
from sparkwright.errors import Failed
from sparkwright.measure import figures, gpu_sampler, load, server_counters, speculation, stream, workload
from sparkwright.measure.background import BackgroundSampler, LagSampler
from sparkwright.measure.http_probe import Target
from sparkwright.measure.load import Outcome, Request
from sparkwright.measure.server_client import ServerClient, TokenEstimator, random_text
from sparkwright.measure.server_counters import counter_increase, has_count_mismatch, read_settled_counters
from sparkwright.measure.workload import Load
from sparkwright.visible import format_count

#: maximum share of prompt tokens from the prefix cache; prompts are random, so a higher share makes the result inconclusive
MAX_CACHED_SHARE = 0.05
#: the client may have caused the largest gap if its own largest lag exceeds this share of that gap
MIN_LAG_SHARE_OF_GAP = 0.5
IDLE_TIMEOUT_S = 10.0
#: duration after which a stream is closed, because a server may never end it
MAX_STREAM_S = 24 * 3600
#: numbers of words in the two prompts from which the tokens per word are derived
FEW_WORDS, MANY_WORDS = 32, 256
WARM_UP_TOKENS = 8
#: number of streams whose individual gaps are stored, and number of gaps per stream
MAX_SERIES = 4
MAX_POINTS = 4000

#: interval between two reports of a measurement's progress
PROGRESS_INTERVAL_S = 0.5
#: after this time without data from the server, its silence is reported
MIN_SILENCE_S = 10.0

CounterReader = Callable[[], Mapping[str, float]]
#: called with the number of finished requests, their total (0 during the warm-up), and the activity
ProgressReport = Callable[[int, int, str], None]


def measure_load(
    target: Target,
    spec: Load,
    *,
    idle_s: float = IDLE_TIMEOUT_S,
    read_counters: CounterReader | None = None,
    sample_gpu: Callable[[], Mapping[str, float | None]] = dict,
    report_progress: ProgressReport = lambda done, total, text: None,
) -> dict[str, Any]:
    """Send a load, and return the result: a cell without its key and arm (docs/lab.md describes the fields).

    Args:
        target: the server to measure.
        idle_s: how long to wait for other requests to finish.
        read_counters: returns the engine's current metrics by role; None to query the server.
        sample_gpu: returns the current readings of the GPU; empty if there are none.
        report_progress: called at regular intervals, from another thread.

    Raises:
        Inconclusive: the server is busy with other requests.
        Failed: the server generates no token.
    """
    read_counters = read_counters or (lambda: server_counters.read_counters(target)[0])
    server_counters.wait_until_idle(read_counters, idle_s)
    with _ProgressReporter(report_progress, target.timeout_s) as reporter:
        server = _warm_up(target, spec, reporter)
        counters_before, began_s = dict(read_counters()), time.time()
        phases = workload.build_phases(spec, server)
        reporter.total_count = sum(len(phase.requests) for phase in phases)
        outcomes, last_outcomes = list[Outcome](), list[Outcome]()
        with LagSampler() as lag, gpu_sampler.GpuSampler(sample_gpu) as sampler:
            for phase in phases:
                last_outcomes = load.send_all(
                    target,
                    phase.requests,
                    concurrency=phase.concurrency,
                    cap_s=MAX_STREAM_S,
                    on_chunk=reporter.record_data,
                    on_done=reporter.count_finished,
                )
                outcomes += last_outcomes
            gpu_state = sampler.state
    counters_after = read_settled_counters(
        read_counters, lambda counters: _describe_mismatch(counters_before, counters, outcomes)
    )
    return {
        "started_at_s": round(began_s, 3),
        "seconds": round(time.time() - began_s, 3),
        **_build_report(outcomes, counters_before, counters_after, lag, gpu_state),
        "derived": {**derive_figures(spec, outcomes), **_acceptance_figures(counters_before, counters_after)},
        "series": _build_series(last_outcomes),
    }


class _ProgressReporter(BackgroundSampler):
    """Reports the progress of a measurement, and for how long the server has sent no data."""

    def __init__(self, report: ProgressReport, timeout_s: float) -> None:
        super().__init__()
        self._report, self._timeout_s = report, timeout_s
        self._finished_count, self._last_data_s = 0, time.monotonic()
        #: number of all requests; 0 during the warm-up
        self.total_count = 0

    def record_data(self, _: int) -> None:
        """Record that the server has sent data."""
        self._last_data_s = time.monotonic()

    def count_finished(self, _: int) -> None:
        """Count a finished request."""
        self._finished_count += 1

    def sample(self) -> None:
        silence_s = time.monotonic() - self._last_data_s
        text = "requests done" if self.total_count else "warming up"
        if silence_s >= MIN_SILENCE_S:
            text += f", no data from the server for {silence_s:.0f} s (limit: {self._timeout_s:g} s)"
        self._report(self._finished_count, self.total_count, text)
        self.pause(PROGRESS_INTERVAL_S)


def _warm_up(target: Target, spec: Load, reporter: _ProgressReporter) -> ServerClient:
    """Send a request of each length class, so that kernels are compiled before the measurement, and return the client.

    The returned client has estimated the tokens per word from these requests.
    """
    server = ServerClient(target, temperature=spec.temperature)

    def send(request: Request, error_prefix: str = "the warm-up was interrupted") -> int:
        try:
            return server.run(request, cap_s=MAX_STREAM_S, on_chunk=reporter.record_data).prompt_tokens
        except stream.StreamError as error:
            raise Failed(f"{error_prefix}: {error}.") from None

    short_tokens = send(server.build_request(random_text(FEW_WORDS), 1), f"no token from {target.base_url}")
    long_tokens = send(server.build_request(random_text(MANY_WORDS), 1))
    server.token_estimator = TokenEstimator.from_prompts((FEW_WORDS, short_tokens), (MANY_WORDS, long_tokens))
    for tokens in workload.warm_up_lengths(spec):
        send(server.build_sized_request(tokens, WARM_UP_TOKENS))
    return server


def _acceptance_figures(counters_before: Mapping[str, float], counters_after: Mapping[str, float]) -> dict[str, float]:
    """Return the statistics of speculative decoding: accepted tokens per draft, and the share accepted at the first position."""
    acceptance = speculation.compute_acceptance(counters_before, counters_after)
    if acceptance is None:
        return {}
    data = {} if acceptance.per_draft is None else {"accepted_per_draft": acceptance.per_draft}
    return {**data, **({"accepted_first": acceptance.positions[0]} if acceptance.positions else {})}


def _describe_mismatch(
    counters_before: Mapping[str, float], counters_after: Mapping[str, float], outcomes: Sequence[Outcome]
) -> str:
    served_tokens = counter_increase(counters_before, counters_after, engine_http.GENERATED)
    streams = [outcome.stream for outcome in outcomes if outcome.stream]
    if served_tokens is None or len(streams) < len(outcomes) or any(stream.approximate for stream in streams):
        return ""
    streamed_tokens = sum(stream.tokens for stream in streams)
    return (
        f"the server counted {served_tokens:.0f} tokens, the client {streamed_tokens}"
        if has_count_mismatch(served_tokens, streamed_tokens, capped_streams=0)
        else ""
    )


def _build_report(
    outcomes: Sequence[Outcome],
    counters_before: Mapping[str, float],
    counters_after: Mapping[str, float],
    lag: LagSampler,
    gpu_state: gpu_sampler.GpuState,
) -> dict[str, Any]:
    """Return the verdict with doubts and notes, and the figures in total and by group."""
    streams = [outcome.stream for outcome in outcomes if outcome.stream]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    totals = figures.summarize(streams)
    percentiles_unreliable = lag.spoils_percentiles(totals.itl.p50 if totals.itl else None)
    hits, queries = (
        counter_increase(counters_before, counters_after, name)
        for name in (engine_http.PREFIX_HITS, engine_http.PREFIX_QUERIES)
    )
    cached_share = round(hits / queries, 4) if queries and hits is not None else None
    mismatch = _describe_mismatch(counters_before, counters_after, outcomes)
    doubts = [mismatch] if mismatch else []
    if cached_share is not None and cached_share > MAX_CACHED_SHARE:
        doubts.append(
            f"{cached_share:.0%} of the prompt tokens were in the prefix cache, although all prompts should be new"
        )
    if gpu_state.is_degraded(None):
        doubts.append(f"host degraded: {gpu_state.sentence}")
    streams_by_group: dict[str, list[stream.Stream]] = {
        outcome.request.group: [] for outcome in sorted(outcomes, key=lambda outcome: outcome.request.group)
    }
    for outcome in outcomes:
        if outcome.stream:
            streams_by_group[outcome.request.group].append(outcome.stream)
    return {
        "verdict": "failed" if not streams else "inconclusive" if doubts else "measured",
        "doubts": doubts,
        "notes": list(_notes(totals, outcomes, lag, percentiles_unreliable=percentiles_unreliable)),
        "requests": len(outcomes),
        "failed_requests": len(errors),
        "figures": _figures(streams, percentiles_unreliable),
        "groups": {name: _figures(streams, percentiles_unreliable) for name, streams in streams_by_group.items()},
        "client_lag_p99_ms": round(lag.p99_s * 1000, 3),
        "client_lag_max_ms": round(lag.max_s * 1000, 3),
        "prefix_hit_share": cached_share,
        "preemptions": counter_increase(counters_before, counters_after, engine_http.PREEMPTIONS),
        "gpu": gpu_state.to_json(),
    }


def _notes(
    totals: figures.Figures, outcomes: Sequence[Outcome], lag: LagSampler, *, percentiles_unreliable: bool
) -> Iterator[str]:
    """Yield the reasons why figures are missing or may describe the client instead of the server."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    stream_count = sum(outcome.stream is not None for outcome in outcomes)
    if percentiles_unreliable:
        yield f"this client wakes up {lag.p99_s * 1000:.1f} ms late (p99), so the p99 of gaps is not reported"
    if totals.largest_gap_s and lag.max_s > MIN_LAG_SHARE_OF_GAP * totals.largest_gap_s:
        lag_ms, gap_ms = lag.max_s * 1000, totals.largest_gap_s * 1000
        yield f"this client once woke up {lag_ms:.0f} ms late: it may have caused the largest gap, {gap_ms:.0f} ms"
    if totals.bursts:
        yield (
            f"{totals.bursts} of {stream_count} streams came in bursts (a reasoning parser or a proxy delays tokens): "
            "they have no decode rate, TTFT or gaps"
        )
    if errors:
        yield f"{len(errors)} of {len(outcomes)} requests failed: {errors[0]}"


def _figures(streams: Sequence[stream.Stream], percentiles_unreliable: bool) -> dict[str, Any]:
    data = figures.summarize(streams).to_json()
    if percentiles_unreliable and "itl_p99_ms" in data:
        data["itl_p99_ms"] = None
    return data


def derive_figures(spec: Load, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the figures that are specific to this kind of load."""

    def select_streams(group: str) -> list[stream.Stream]:
        return [
            outcome.stream
            for outcome in outcomes
            if outcome.stream and outcome.stream.points and outcome.request.group == group
        ]

    derived: dict[str, float | None] = {}
    long_streams = select_streams("long")
    if spec.kind == "smoke":
        prefill_rates = [
            stream.prompt_tokens / stream.ttft_s
            for stream in select_streams("stream")
            if stream.ttft_s and stream.prompt_tokens
        ]
        decode_rates = [stream.tok_per_s for stream in select_streams("stream") if stream.tok_per_s]
        prompt_tokens = [stream.prompt_tokens for stream in select_streams("stream")]
        derived = {
            **_mean_and_deviation("prefill_tok_per_s", prefill_rates),
            **_mean_and_deviation("decode_tok_per_s", decode_rates),
            "prompt_tokens": _aggregate(prompt_tokens, statistics.median),
        }
    if spec.kind in ("hol1", "itl", "hol2"):
        derived["long_prompt_tokens"] = _aggregate((stream.prompt_tokens for stream in long_streams), statistics.median)
        derived["long_ttft_ms"] = _to_ms(_aggregate((stream.ttft_s for stream in long_streams), statistics.median))
    if spec.kind in ("hol1", "itl"):
        chunk_counts = (
            _count_chunks_during_prefill(stream, long_stream)
            for stream in select_streams("decoding")
            for long_stream in long_streams
        )
        derived["chunks_meanwhile"] = _aggregate(chunk_counts, statistics.median)
    if spec.kind == "hol2":
        alone_s = _aggregate(stream.ttft_s for stream in select_streams("short alone"))
        behind_long_s = _aggregate(stream.ttft_s for stream in select_streams("short"))
        derived["short_alone_ttft_mean_ms"], derived["short_ttft_mean_ms"] = _to_ms(alone_s), _to_ms(behind_long_s)
        derived["short_e2el_mean_ms"] = _to_ms(_aggregate(stream.e2el_s for stream in select_streams("short")))
        derived["long_e2el_ms"] = _to_ms(_aggregate(stream.e2el_s for stream in long_streams))
        derived["short_ttft_ratio"] = round(behind_long_s / alone_s, 3) if alone_s and behind_long_s else None
    return {name: value for name, value in derived.items() if value is not None}


def _count_chunks_during_prefill(decoding: stream.Stream, long_stream: stream.Stream) -> int:
    """Return the number of chunks that a stream received during a long prompt's prefill: about one per step if it is chunked."""
    prefill_start_s = long_stream.sent_s - decoding.sent_s
    return sum(prefill_start_s < at_s <= prefill_start_s + (long_stream.ttft_s or 0) for at_s, _ in decoding.points)


def _mean_and_deviation(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the standard deviation, as llama-benchy reports them; empty if there are no values."""
    if not values:
        return {}
    return {name: round(statistics.fmean(values), 3), f"{name}_deviation": round(statistics.pstdev(values), 3)}


def _aggregate(
    values: Iterable[float | None], aggregate: Callable[[list[float]], float] = statistics.fmean
) -> float | None:
    present_values = [value for value in values if value is not None]
    return aggregate(present_values) if present_values else None


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _build_series(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the individual gaps of up to MAX_SERIES decoding streams, with times relative to the phase's first request."""
    streams = [(outcome.request.group, outcome.stream) for outcome in outcomes if outcome.stream]
    start_s = min((stream.sent_s for _, stream in streams), default=0.0)
    arrivals = [round(stream.sent_s - start_s, 4) for group, stream in streams if group == "long"]
    series = []
    decoding_streams = [member for group, member in streams if group == "decoding"]
    for decoding in decoding_streams[:MAX_SERIES]:
        ends = [decoding.sent_s - start_s + at_s for at_s, _ in decoding.points[1:]]
        gaps = list(zip(ends, decoding.gaps_s, strict=False))[:MAX_POINTS]  # empty for a stream in bursts
        at_s, gap_ms = [round(end_s, 4) for end_s, _ in gaps], [round(gap_s * 1000, 3) for _, gap_s in gaps]
        series.append({"at_s": at_s, "gap_ms": gap_ms, "long_at_s": arrivals})
    return series


def describe_cell(cell: dict[str, Any]) -> str:
    """Return a cell as one line of text."""
    if cell["verdict"] == "failed":
        return f"every request failed: {'; '.join(cell['notes'])}"
    figures = cell["figures"]
    doubt = f" ({cell['verdict']}: {'; '.join(cell['doubts'])})" if cell["doubts"] else ""
    ttft = f", TTFT p50 {figures['ttft_p50_ms']:.0f} ms" if "ttft_p50_ms" in figures else ""
    gap = f", largest gap {figures['largest_gap_ms']:.0f} ms" if figures["largest_gap_ms"] else ""
    requests = format_count(figures["streams"], "request")
    return f"{figures['output_tok_per_s']:.1f} tok/s over {requests}{ttft}{gap}{doubt}"

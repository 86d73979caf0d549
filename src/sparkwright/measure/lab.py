"""Measuring a cell of the lab: send a load to a server and return the result as plain JSON with units in the names.

It works with any base_url. The caller provides the server's counters and the GPU's state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import http as roles
from sparkwright.engines.http import Http
from sparkwright.errors import Failed
from sparkwright.measure import background, figures, http_probe, load, speculation, stream, workload
from sparkwright.measure.asker import Asker, Ruler, words_text
from sparkwright.measure.background import Lag
from sparkwright.measure.http_probe import miscounted, risen, settled
from sparkwright.measure.load import Outcome, Request
from sparkwright.measure.workload import Load

#: maximum share of prompt tokens from the cache, above which the prompts were not as new as they should be
WARM = 0.05
#: share of a gap from which the client's largest lag may explain the gap
OWN = 0.5
IDLE_S = 10.0
FEW_WORDS, MANY_WORDS = 32, 256
WARM_UP_TOKENS = 8
#: number of streams whose individual gaps are stored, and number of gaps per stream
SERIES = 4
POINTS = 4000

Counters = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Target:
    """The server to measure."""

    #: the engine's HTTP API
    http: Http
    #: URL such as http://127.0.0.1:8000
    base_url: str
    #: served name
    model: str
    api_key: str = field(default="", repr=False)
    #: returns the engine's current metrics by role; empty if there are none
    counters: Counters = dict
    #: returns a sample of the GPU; empty if there is none
    gpu_sample: Callable[[], Mapping[str, float | None]] = dict


def run(
    target: Target,
    wanted: Load,
    *,
    timeout_s: float = 600,
    idle_s: float = IDLE_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Send a load and measure it. Return a cell as described in docs/lab.md, without its key and arm.

    Args:
        target: the server to measure.
        wanted: the load.
        timeout_s: longest silence of a stream.
        idle_s: how long to wait for other requests to finish.
        progress: called with the number of finished requests and the total.

    Raises:
        Inconclusive: the server serves other requests.
        Failed: the server generates no token.
    """
    http_probe.wait_until_idle(target.counters, idle_s)
    asker = _warm(target, wanted, timeout_s)
    before, began_s = dict(target.counters()), time.time()
    phases = workload.phases(wanted, asker)
    total, outcomes, last = sum(len(phase.requests) for phase in phases), list[Outcome](), list[Outcome]()
    with Lag() as lag, background.Sampler(target.gpu_sample) as sampler:
        for phase in phases:
            so_far = len(outcomes)
            last = load.run(
                target.base_url,
                phase.requests,
                counted=target.http.counted,
                api_key=target.api_key,
                concurrency=phase.concurrency,
                cap_s=timeout_s,
                timeout_s=timeout_s,
                on_done=lambda count, so_far=so_far: progress(so_far + count, total),  # type: ignore[misc]
            )
            outcomes += last
        state = sampler.state
    after = settled(target.counters, lambda now: _mismatch(before, now, outcomes))
    return {
        "started_at_s": round(began_s, 3),
        "seconds": round(time.time() - began_s, 3),
        **_reported(outcomes, before, after, lag, state),
        "derived": {**derived(wanted, outcomes), **_accepted(before, after)},
        "series": _series(last),
    }


def _warm(target: Target, wanted: Load, timeout_s: float) -> Asker:
    """Learn the number of tokens per word, and send each class of lengths once, because the first request compiles kernels."""
    asker = Asker(target.http, target.model, target.base_url, target.api_key, temperature=wanted.temperature)

    def one(request: Request, why: str = "the warm-up was interrupted") -> int:
        try:
            return asker.run(request, cap_s=timeout_s, timeout_s=timeout_s).prompt_tokens
        except stream.StreamError as error:
            raise Failed(f"{why}: {error}.") from None

    few = one(asker.request(words_text(FEW_WORDS), 1), f"no token from {target.base_url}")
    many = one(asker.request(words_text(MANY_WORDS), 1))
    asker.ruler = Ruler.of((FEW_WORDS, few), (MANY_WORDS, many))
    for tokens in workload.classes(wanted):
        one(asker.sized(tokens, WARM_UP_TOKENS))
    return asker


def _accepted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of speculation from the server's counters: accepted tokens per draft, and the first position's share."""
    found = speculation.acceptance(before, after)
    if found is None:
        return {}
    first = {"accepted_first": found.positions[0]} if found.positions else {}
    return {**({"accepted_per_draft": found.per_draft} if found.per_draft is not None else {}), **first}


def _mismatch(before: Mapping[str, float], after: Mapping[str, float], outcomes: Sequence[Outcome]) -> str:
    served = risen(before, after, roles.GENERATED)
    streams = [outcome.stream for outcome in outcomes if outcome.stream]
    if served is None or len(streams) < len(outcomes) or any(stream.approximate for stream in streams):
        return ""
    mine = sum(stream.tokens for stream in streams)
    return f"the server counted {served:.0f} tokens, the client {mine}" if miscounted(served, mine, capped=0) else ""


def _reported(
    outcomes: Sequence[Outcome],
    before: Mapping[str, float],
    after: Mapping[str, float],
    lag: Lag,
    state: background.State,
) -> dict[str, Any]:
    """Return the figures, in total and by group, and all doubts about them."""
    streams = [outcome.stream for outcome in outcomes if outcome.stream]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    groups = sorted({outcome.request.group for outcome in outcomes})
    everything = figures.of(streams)
    spoilt = lag.spoils_percentiles(everything.itl.p50 if everything.itl else None)
    hits, queries = (risen(before, after, name) for name in (roles.PREFIX_HITS, roles.PREFIX_QUERIES))
    warm = round(hits / queries, 4) if queries and hits is not None else None
    doubts = [message for message in (_mismatch(before, after, outcomes),) if message]
    if warm is not None and warm > WARM:
        doubts.append(f"the prefix cache hit {warm:.0%} of prompts that should be new")
    if state.degraded(None):
        doubts.append(f"host degraded: {state.sentence}")
    by_group = {
        name: [outcome.stream for outcome in outcomes if outcome.stream and outcome.request.group == name]
        for name in groups
    }
    return {
        "verdict": "failed" if not streams else "inconclusive" if doubts else "measured",
        "doubts": doubts,
        "notes": list(_notes(everything, outcomes, lag, spoilt=spoilt)),
        "requests": len(outcomes),
        "failed_requests": len(errors),
        "figures": _figures(streams, spoilt),
        "groups": {name: _figures(own, spoilt) for name, own in by_group.items()},
        "client_lag_p99_ms": round(lag.p99_s * 1000, 3),
        "client_lag_max_ms": round(lag.max_s * 1000, 3),
        "prefix_hit_share": warm,
        "preemptions": risen(before, after, roles.PREEMPTIONS),
        "gpu": state.to_json(),
    }


def _notes(everything: figures.Figures, outcomes: Sequence[Outcome], lag: Lag, *, spoilt: bool) -> Iterator[str]:
    """Yield the reasons why some figures are missing or may be the client's own."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    streams = sum(outcome.stream is not None for outcome in outcomes)
    if spoilt:
        yield f"this client wakes up {lag.p99_s * 1000:.1f} ms late (p99): p99 of gaps not reported"
    if everything.largest_gap_s and lag.max_s > OWN * everything.largest_gap_s:
        own_ms, gap_ms = lag.max_s * 1000, everything.largest_gap_s * 1000
        yield f"this client once woke up {own_ms:.0f} ms late: it may have caused the largest gap, {gap_ms:.0f} ms"
    if everything.bursts:
        yield (
            f"{everything.bursts} of {streams} streams came in bursts (a reasoning parser or a proxy holds tokens back): "
            "no decode rate, TTFT or time between tokens of them"
        )
    if errors:
        yield f"{len(errors)} of {len(outcomes)} requests failed: {errors[0]}"


def _figures(streams: Sequence[stream.Stream], spoilt: bool) -> dict[str, Any]:
    found = figures.of(streams).to_json()
    if spoilt and "itl_p99_ms" in found:
        found["itl_p99_ms"] = None
    return found


def derived(wanted: Load, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the figures that are specific to this kind of load, from the streams of its groups."""

    def of(group: str) -> list[stream.Stream]:
        return [
            outcome.stream
            for outcome in outcomes
            if outcome.stream and outcome.stream.points and outcome.request.group == group
        ]

    found: dict[str, float | None] = {}
    long = of("long")
    if wanted.kind == "smoke":
        prefill = [
            stream.prompt_tokens / stream.ttft_s for stream in of("stream") if stream.ttft_s and stream.prompt_tokens
        ]
        decode = [stream.tok_per_s for stream in of("stream") if stream.tok_per_s]
        found = {**_pair("prefill_tok_per_s", prefill), **_pair("decode_tok_per_s", decode)}
        found["prompt_tokens"] = _middle((stream.prompt_tokens for stream in of("stream")), statistics.median)
    if wanted.kind in ("hol1", "itl", "hol2"):
        found["long_prompt_tokens"] = _middle((stream.prompt_tokens for stream in long), statistics.median)
        found["long_ttft_ms"] = _ms(_middle((stream.ttft_s for stream in long), statistics.median))
    if wanted.kind in ("hol1", "itl"):
        found["chunks_meanwhile"] = _middle(
            (_meanwhile(stream, each) for stream in of("decoding") for each in long), statistics.median
        )
    if wanted.kind == "hol2":
        alone = _middle(stream.ttft_s for stream in of("short alone"))
        behind = _middle(stream.ttft_s for stream in of("short"))
        found["short_alone_ttft_mean_ms"], found["short_ttft_mean_ms"] = _ms(alone), _ms(behind)
        found["short_e2el_mean_ms"] = _ms(_middle(stream.e2el_s for stream in of("short")))
        found["long_e2el_ms"] = _ms(_middle(stream.e2el_s for stream in long))
        found["short_ttft_ratio"] = round(behind / alone, 3) if alone and behind else None
    return {name: value for name, value in found.items() if value is not None}


def _meanwhile(short: stream.Stream, long: stream.Stream) -> int:
    """Return the number of chunks that a stream received during a long prompt's prefill.

    With chunked prefill it is about one per step.
    """
    begin_s = long.sent_s - short.sent_s
    return sum(begin_s < at_s <= begin_s + (long.ttft_s or 0) for at_s, _ in short.points)


def _pair(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return a mean and its standard deviation, as in llama-benchy's rows."""
    if not values:
        return {}
    return {name: round(statistics.fmean(values), 3), f"{name}_deviation": round(statistics.pstdev(values), 3)}


def _middle(values: Iterable[float | None], of: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    known = [value for value in values if value is not None]
    return of(known) if known else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _series(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the individual gaps of several streams, with their ends relative to the phase's first request."""
    sent = [(outcome.request.group, outcome.stream) for outcome in outcomes if outcome.stream]
    start_s = min((stream.sent_s for _, stream in sent), default=0.0)
    arrivals = [round(stream.sent_s - start_s, 4) for group, stream in sent if group == "long"]
    found = []
    decoding = [sent_stream for group, sent_stream in sent if group == "decoding"]
    for measured in decoding[:SERIES]:
        ends = [measured.sent_s - start_s + at_s for at_s, _ in measured.points[1:]]
        gaps = list(zip(ends, measured.gaps_s, strict=False))[:POINTS]  # empty for a stream in bursts
        at, gap_ms = [round(at, 4) for at, _ in gaps], [round(gap * 1000, 3) for _, gap in gaps]
        found.append({"at_s": at, "gap_ms": gap_ms, "long_at_s": arrivals})
    return found


def sentence(cell: dict[str, Any]) -> str:
    """Return a cell as one line of text."""
    if cell["verdict"] == "failed":
        return f"every request failed: {'; '.join(cell['notes'])}"
    figures = cell["figures"]
    doubt = f" ({cell['verdict']}: {'; '.join(cell['doubts'])})" if cell["doubts"] else ""
    ttft = f", TTFT p50 {figures['ttft_p50_ms']:.0f} ms" if "ttft_p50_ms" in figures else ""
    gap = f", largest gap {figures['largest_gap_ms']:.0f} ms" if figures["largest_gap_ms"] else ""
    return f"{figures['output_tok_per_s']:.1f} tok/s of {figures['streams']} streams{ttft}{gap}{doubt}"

"""Benchmark loads: their definitions, the requests that are sent for each, and the steps of a load test.

Every prompt begins with random text, so that no prefix cache contains it.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sparkwright.measure.load import Request
from sparkwright.measure.server_client import ServerClient
from sparkwright.units import format_gib

#: `hol1` sends a long prompt while streams decode, and `hol2` sends short prompts behind a long one (head-of-line blocking)
KINDS = ("smoke", "serve", "hol1", "hol2", "itl", "mixed", "depth")

#: figures are only comparable if they were measured with the same version of the loads
WORKLOAD_VERSION = 1

#: lengths in ShareGPT as used by vLLM's own benchmark, in tokens: one turn with a prompt and an answer of 4 to 1024 tokens each
MIN_LENGTH, MAX_LENGTH = 4, 1024
#: (median, sigma) of log-normal distributions that, truncated to these limits, have the same means as ShareGPT: 230 tokens for
#: prompts and 203 for answers (vLLM #18566, 1000 requests)
PROMPT_LENGTH_DISTRIBUTION = (170.0, 1.2)
ANSWER_LENGTH_DISTRIBUTION = (145.0, 0.95)

#: a load test first sends single prompts of the context length divided by each of these, and then all streams at once
CONTEXT_DIVISORS = (8, 4, 2, 1)
MIN_PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Load:
    """The requests to send to a server in one measurement. Fields that its kind does not use are 0."""

    #: one of KINDS
    kind: str
    #: number of concurrent requests
    concurrency: int = 0
    #: arrivals per second, Poisson distributed, instead of a concurrency
    rate: float = 0.0
    #: number of requests, or of runs for `smoke`
    requests: int = 0
    #: prompt tokens per request; for `serve`, 0 means ShareGPT's lengths
    prompt_tokens: int = 0
    #: output tokens per request; for `serve`, 0 means ShareGPT's lengths
    output_tokens: int = 0
    #: number of streams that decode when a long prompt arrives
    streams: int = 0
    #: tokens of a long prompt
    long_tokens: int = 0
    #: number of long prompts
    longs: int = 0
    #: number of short prompts
    shorts: int = 0
    #: delay before the long prompt arrives; for `hol2`, before the short prompts follow it
    after_s: float = 0.0
    #: interval between long prompts, for `itl`
    every_s: float = 0.0
    #: random seed for lengths, order and arrivals
    seed: int = 1
    #: sampling temperature; 0 for greedy
    temperature: float = 0.0
    #: prompts from a data set, as (prompt, output tokens), instead of random ones
    prompts: tuple[tuple[str, int], ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def result_fields(self) -> dict[str, Any]:
        """The load as stored in results, where `prompts` is the number of prompts instead of their texts."""
        return {**self.to_json(), "prompts": len(self.prompts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Load:
        """Rebuild a load from the output of `to_json`. Raises TypeError for an unknown field, ValueError for an unknown kind."""
        values = {**data, "prompts": tuple((str(text), int(tokens)) for text, tokens in data.get("prompts") or ())}
        load = cls(**values)
        if load.kind not in KINDS:
            raise ValueError(f"unknown load {load.kind!r}; available: {', '.join(KINDS)}")
        return load


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests that are sent together."""

    requests: tuple[Request, ...]
    #: number of concurrent requests; 0 to send each at its own time
    concurrency: int = 0


def build_phases(load: Load, client: ServerClient) -> list[Phase]:
    """Return the phases of a load, in the order in which they are sent."""
    return _PHASE_BUILDERS[load.kind](load, client)


def _build_smoke_phases(load: Load, client: ServerClient) -> list[Phase]:
    return [Phase(_equal_requests(load, client, load.requests, "stream"), 1)]


def _build_serve_phases(load: Load, client: ServerClient) -> list[Phase]:
    prompts = list(itertools.islice(_draw_prompts(load), load.requests))
    times = arrival_times(load)
    requests = []
    for (text, prompt_tokens, tokens), at_s in zip(prompts, times, strict=False):
        # prompts from a data set also begin with random text
        prompt = f"{secrets.token_hex(16)} {text}" if text else client.token_estimator.build_text(prompt_tokens)
        requests.append(client.build_request(prompt, tokens, at_s=at_s, group="request"))
    return [Phase(tuple(requests), 0 if load.rate else load.concurrency)]


def _build_hol1_phases(load: Load, client: ServerClient) -> list[Phase]:
    return [Phase((*_decoding_requests(load, client), _long_request(load, client, load.after_s)))]


def _build_itl_phases(load: Load, client: ServerClient) -> list[Phase]:
    long_requests = [_long_request(load, client, load.after_s + n * load.every_s) for n in range(load.longs)]
    return [Phase((*_decoding_requests(load, client), *long_requests))]


def _build_hol2_phases(load: Load, client: ServerClient) -> list[Phase]:
    """Return a phase with only short prompts, and one with a long prompt followed by short ones."""
    following_requests = _equal_requests(load, client, load.shorts, "short", load.after_s)
    return [
        Phase(_equal_requests(load, client, load.shorts, "short alone")),
        Phase((_long_request(load, client, 0.0), *following_requests)),
    ]


def _build_mixed_phases(load: Load, client: ServerClient) -> list[Phase]:
    groups = ["long"] * load.longs + ["short"] * load.shorts
    random.Random(load.seed).shuffle(groups)
    requests = []
    for group, at_s in zip(groups, arrival_times(load), strict=False):
        tokens = load.long_tokens if group == "long" else load.prompt_tokens
        requests.append(client.build_sized_request(tokens, load.output_tokens, at_s=at_s, group=group))
    return [Phase(tuple(requests), 0 if load.rate else load.concurrency)]


def _build_depth_phases(load: Load, client: ServerClient) -> list[Phase]:
    return [Phase(_equal_requests(load, client, load.concurrency * load.requests, "stream"), load.concurrency)]


_PHASE_BUILDERS = {
    "smoke": _build_smoke_phases,
    "serve": _build_serve_phases,
    "hol1": _build_hol1_phases,
    "hol2": _build_hol2_phases,
    "itl": _build_itl_phases,
    "mixed": _build_mixed_phases,
    "depth": _build_depth_phases,
}


def _equal_requests(load: Load, client: ServerClient, count: int, group: str, at_s: float = 0.0) -> tuple[Request, ...]:
    return tuple(
        client.build_sized_request(load.prompt_tokens, load.output_tokens, at_s=at_s, group=group) for _ in range(count)
    )


def _decoding_requests(load: Load, client: ServerClient) -> tuple[Request, ...]:
    return tuple(client.build_sized_request(64, load.output_tokens, group="decoding") for _ in range(load.streams))


def _long_request(load: Load, client: ServerClient, at_s: float) -> Request:
    return client.build_sized_request(load.long_tokens, 8, at_s=at_s, group="long")


def arrival_times(load: Load) -> Iterator[float]:
    """Yield the send times of requests in seconds: all 0, or a Poisson process with the load's rate."""
    rng, at_s = random.Random(load.seed), 0.0
    while True:
        yield at_s
        at_s += rng.expovariate(load.rate) if load.rate else 0.0


def _draw_prompts(load: Load) -> Iterator[tuple[str, int, int]]:
    """Yield an endless sequence of (prompt text, prompt tokens, answer tokens); the text is empty for a random prompt."""
    if load.prompts:
        yield from ((text, 0, load.output_tokens or tokens) for text, tokens in itertools.cycle(load.prompts))
    rng = random.Random(load.seed)
    while True:
        prompt_tokens = _draw_length(rng, PROMPT_LENGTH_DISTRIBUTION)
        answer_tokens = _draw_length(rng, ANSWER_LENGTH_DISTRIBUTION)
        yield "", load.prompt_tokens or prompt_tokens, load.output_tokens or answer_tokens


def _draw_length(rng: random.Random, distribution: tuple[float, float]) -> int:
    """Return a random length from MIN_LENGTH to MAX_LENGTH. distribution: median and sigma."""
    median, sigma = distribution
    while True:
        length = round(median * rng.lognormvariate(0.0, sigma))
        if MIN_LENGTH <= length <= MAX_LENGTH:
            return length


def warm_up_lengths(load: Load) -> Sequence[int]:
    """Return the prompt lengths, in tokens, for which a warm-up request is sent."""
    if load.kind == "depth":
        return ()  # the warm-up would take as long as the measurement
    typical_tokens = load.prompt_tokens or (
        round(PROMPT_LENGTH_DISTRIBUTION[0]) if load.kind in ("serve", "mixed") else 64
    )
    return sorted({typical_tokens, load.long_tokens} - {0})


@dataclass(frozen=True, slots=True)
class LoadStep:
    """A step of a load test: the number and length of simultaneous prompts, and the outcome."""

    #: tokens per prompt
    context: int
    #: number of prompts
    streams: int
    #: median decode rate of a stream; None if there were too few tokens
    tok_per_s: float | None = None
    #: longest time to a first token, in seconds
    ttft_s: float | None = None
    #: lowest MemAvailable during the step
    lowest_bytes: int | None = None

    def __str__(self) -> str:
        left_text = f"{format_gib(self.lowest_bytes)} GiB left" if self.lowest_bytes is not None else ""
        rate_text = f"{self.tok_per_s:.1f} tok/s" if self.tok_per_s else ""
        ttft_text = f"TTFT {self.ttft_s:.1f} s" if self.ttft_s is not None else ""
        return f"{self.context} x {self.streams}: {', '.join(filter(None, (left_text, rate_text, ttft_text)))}"


def build_load_steps(context: int, streams: int) -> list[LoadStep]:
    """Return the steps of a load test: single prompts of increasing length, then `streams` prompts of the whole context."""
    lengths = dict.fromkeys(max(MIN_PROMPT_TOKENS, context // divisor) for divisor in CONTEXT_DIVISORS)
    return [LoadStep(tokens, 1) for tokens in lengths] + ([LoadStep(context, streams)] if streams > 1 else [])


def format_last_step(rows: object) -> str:
    """Return the last step of a stored load test as text; empty if there is none or it is invalid."""
    last_row = rows[-1] if isinstance(rows, list) and rows else None
    if not isinstance(last_row, Mapping) or not isinstance(last_row.get("context"), int):
        return ""
    step = {field.name: last_row.get(field.name) for field in fields(LoadStep)}
    is_valid = all(
        figure is None or (isinstance(figure, int | float) and not isinstance(figure, bool)) for figure in step.values()
    )
    return f"survives {LoadStep(**step)}" if is_valid else ""  # type: ignore[arg-type]

"""The processing of one request: wait for a slot, compute the prompt, generate tokens at a realistic rate."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.sandbox.serving.process import Process

_SENTENCE = "The lamp turned above the dark water, and he counted ships."  # words: data
ANSWER_WORDS = tuple(f"{word} " for word in _SENTENCE.split())
DAMAGED_WORDS = tuple(reversed(ANSWER_WORDS))  # answer of a model with damaged weights
#: what a broken kernel on a GB10 answers to every prompt (NVIDIA/dgx-spark-playbooks 76)
GARBLED_WORDS = ("'s", "'t", "'s", "'t", "'s", "'s", "'s")
PREFILL_S = 0.06
PREFILL_TOK_PER_S = 4000.0
SHARED_RATE_FACTOR = 0.75  # each additional stream multiplies the rate of all streams by this factor
#: the fault slow-at-depth multiplies the rate by DEEP_RATE_FACTOR for prompts of at least this length
DEEP_PROMPT_TOKENS, DEEP_RATE_FACTOR = 4096, 0.2
POLL_S = 0.05  # interval between checks for a disconnected client
ANSWER_TOKENS = 64  # length of an answer after its thinking


class Aborted(ConnectionResetError):
    """The client disconnected, or the engine is stopping."""


class GroupBroken(Exception):
    """Another rank of the engine's group has exited."""


@dataclass(frozen=True)
class Request:
    """A request to generate text."""

    #: token ids
    prompt: list[int]
    max_tokens: int
    #: number of tokens after which the model ends the answer
    stop_after_tokens: int
    #: number of thinking tokens at the beginning of the answer
    thinking_tokens: int
    has_disconnected: Callable[[], bool]
    #: the client requested log probabilities: tokens are sent one at a time, without delay if the sandbox is instant
    with_logprobs: bool = False
    #: words of the thinking and the answer; the default words if empty
    words: tuple[str, ...] = ()

    @property
    def token_count(self) -> int:
        """Number of tokens to generate."""
        return min(self.max_tokens, self.stop_after_tokens)

    @property
    def finish_reason(self) -> str:
        return "length" if self.max_tokens <= self.stop_after_tokens else "stop"


@dataclass(frozen=True)
class Token:
    """A piece of generated text."""

    #: content or reasoning
    kind: str
    text: str
    #: tokens generated so far, including this piece
    count: int
    #: set on the last piece only
    finish_reason: str | None


def count_tokens(pieces: Sequence[Token], kind: str = "") -> int:
    """Return the number of tokens of an answer, or of one kind of its pieces. With drafts a piece has several tokens."""
    counts = [0, *(piece.count for piece in pieces)]
    sizes = [count - previous_count for previous_count, count in itertools.pairwise(counts)]
    return sum(size for piece, size in zip(pieces, sizes, strict=True) if kind in ("", piece.kind))


def natural_length(body: Mapping[str, Any], max_tokens: int | None, thinking_tokens: int = 0) -> int:
    """Return the number of tokens after which the model ends an answer: max_tokens if the request sets ignore_eos."""
    return max_tokens if max_tokens and body.get("ignore_eos") else ANSWER_TOKENS + thinking_tokens


def adapter_words(name: str) -> tuple[str, ...]:
    """Return the words of an adapter's answers: the model's words, rotated by an offset that depends on its name."""
    start = 1 + sum(name.encode()) % (len(ANSWER_WORDS) - 1)
    return ANSWER_WORDS[start:] + ANSWER_WORDS[:start]


def generate(engine: Process, request: Request) -> Iterator[Token]:
    """Yield the tokens on a fixed schedule: a late token does not delay the next one. Raises Aborted or GroupBroken."""
    arrived_s, finish_reason, generated_count = time.monotonic(), "abort", 0
    words = GARBLED_WORDS if engine.garbled else request.words or (DAMAGED_WORDS if engine.damaged else ANSWER_WORDS)
    try:
        with _reserve_slot(engine, request):
            cached_tokens = engine.cache.cache_prompt(request.prompt)
            engine.counters.add_prompt(len(request.prompt), cached_tokens)
            last_token_s, due_s = arrived_s, _compute_prompt(engine, request, len(request.prompt) - cached_tokens)
            pending_text, step_tokens = "", 0
            for n, word in zip(range(1, request.token_count + 1), itertools.cycle(words), strict=False):
                if not step_tokens:
                    due_s = _wait_for_step(engine, request, due_s, is_first=n == 1)
                    step_tokens = engine.counters.begin_step() if n > 1 else 1
                last_token_s, stream_count = _record_token(engine, n, arrived_s, last_token_s)
                generated_count, step_tokens, pending_text = n, step_tokens - 1, pending_text + word
                if (
                    step_tokens
                    and not request.with_logprobs
                    and n not in (request.token_count, request.thinking_tokens)
                ):
                    continue  # the tokens of a step are sent together
                kind = "reasoning" if n <= request.thinking_tokens else "content"
                yield Token(kind, pending_text, n, request.finish_reason if n == request.token_count else None)
                pending_text = ""
                if not step_tokens and not (request.with_logprobs and engine.is_instant):
                    rate = _step_rate(engine, len(request.prompt))
                    due_s = max(
                        due_s + 1 / rate / SHARED_RATE_FACTOR ** min(stream_count - 1, 6), time.monotonic() - 0.5
                    )
            finish_reason = request.finish_reason
    finally:
        engine.counters.count_request(finish_reason, generated_count, time.monotonic() - arrived_s)


def _step_rate(engine: Process, prompt_tokens: int) -> float:
    """Return the steps per second of one stream after a prompt of this length."""
    is_slowed = engine.fault() == "slow-at-depth" and prompt_tokens >= DEEP_PROMPT_TOKENS
    return engine.tok_per_s * engine.counters.step_rate_factor * (DEEP_RATE_FACTOR if is_slowed else 1)


def _wait_for_step(engine: Process, request: Request, due_s: float, *, is_first: bool) -> float:
    """Wait for a decode step, and return its time: `due_s`, or later if a prompt is being computed at that time."""
    _wait_until(engine, request, due_s)
    if not is_first and (delayed_s := engine.prefill_step.delayed_time_s(due_s)) > due_s:
        _wait_until(engine, request, delayed_s)
        return delayed_s
    return due_s


def _compute_prompt(engine: Process, request: Request, remaining_tokens: int) -> float:
    """Compute a prompt, in chunks if chunked prefill is on. Return the time at which its first token is due."""
    while not engine.prefill_step.lock.acquire(timeout=POLL_S):
        _check_stop(engine, request)
    try:
        now_s, limits = time.monotonic(), engine.limits
        while remaining_tokens > 0:
            chunk_tokens = min(limits.budget, remaining_tokens) if limits.chunked_prefill else remaining_tokens
            engine.prefill_step.period_s = (now_s, now_s + chunk_tokens / PREFILL_TOK_PER_S)
            now_s, remaining_tokens = engine.prefill_step.period_s[1], remaining_tokens - chunk_tokens
            _wait_until(engine, request, now_s)
        return now_s + PREFILL_S
    finally:
        engine.prefill_step.lock.release()


@contextmanager
def _reserve_slot(engine: Process, request: Request) -> Iterator[None]:
    """Wait for a free slot, and occupy it inside the block."""
    counters, reserved_tokens = engine.counters, len(request.prompt) + request.token_count
    while engine.fault() == "wedge":  # a hung engine core accepts no requests, so they are not counted
        _check_stop(engine, request)
        time.sleep(POLL_S)
    with counters.mutex:
        counters.waiting += 1
    try:
        while not _take_slot(engine, reserved_tokens):
            _check_stop(engine, request)
            time.sleep(POLL_S)
    finally:
        with counters.mutex:
            counters.waiting -= 1
    try:
        yield
    finally:
        with counters.mutex:
            counters.running -= 1
            counters.held_tokens -= reserved_tokens


def _take_slot(engine: Process, reserved_tokens: int) -> bool:
    with engine.counters.mutex:
        if engine.counters.running >= engine.limits.max_num_seqs:
            return False
        engine.counters.running += 1
        engine.counters.held_tokens += reserved_tokens
        return True


def _wait_until(engine: Process, request: Request, due_s: float) -> None:
    """Wait until due_s, or forever in a wedged engine. Raises Aborted or GroupBroken."""
    _check_stop(engine, request)
    while (remaining_s := due_s - time.monotonic()) > 0 or engine.fault() == "wedge":
        if engine.stop_event.wait(min(max(remaining_s, 0.001), POLL_S) if remaining_s > 0 else POLL_S):
            break
        _check_stop(engine, request)
    _check_stop(engine, request)


def _check_stop(engine: Process, request: Request) -> None:
    if engine.has_lost_peer:
        raise GroupBroken
    if engine.stop_event.is_set() or request.has_disconnected():
        raise Aborted


def _record_token(engine: Process, n: int, arrived_s: float, last_token_s: float) -> tuple[float, int]:
    """Count a token. Return its time and the number of running streams."""
    now_s = time.monotonic()
    engine.counters.count_token(n, now_s - (arrived_s if n == 1 else last_token_s))
    return now_s, engine.counters.running


class PromptCache:
    """A cache of the most recent prompts. A prefix shared with a cached prompt is not computed again.

    Args:
        max_prompts: number of prompts to cache; 0 disables the cache.
    """

    def __init__(self, max_prompts: int) -> None:
        self._prompts: deque[Sequence[int]] = deque(maxlen=max_prompts)
        self._mutex = threading.Lock()

    def cache_prompt(self, prompt: Sequence[int]) -> int:
        """Cache a prompt. Return the number of leading tokens that were already cached; at least one token is always computed."""
        with self._mutex:
            cached_tokens = max((_shared_prefix_length(prompt, other) for other in self._prompts), default=0)
            self._prompts.append(prompt)
        return max(0, min(cached_tokens, len(prompt) - 1))


def _shared_prefix_length(prompt: Sequence[int], other_prompt: Sequence[int]) -> int:
    differing_positions = (
        n for n, (left, right) in enumerate(zip(prompt, other_prompt, strict=False)) if left != right
    )
    return next(differing_positions, min(len(prompt), len(other_prompt)))

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
#: answer of a broken kernel on a GB10 to every prompt (NVIDIA/dgx-spark-playbooks 76)
GARBLED_WORDS = ("'s", "'t", "'s", "'t", "'s", "'s", "'s")
PREFILL_S = 0.06
PREFILL_TOK_PER_S = 4000.0
SHARED_RATE = 0.75  # rate of each stream, as a share, when one more stream runs
#: length of a deep prompt, tokens, and its share of the rate with the fault
DEEP_PROMPT_TOKENS, DEEP_RATE = 4096, 0.2
POLL_S = 0.05  # interval of the checks for a disconnected client
ANSWER_TOKENS = 64  # length of an answer behind its thinking, tokens


class Aborted(ConnectionResetError):
    """The client disconnected, or the engine stops."""


class GroupBroken(Exception):
    """A member of the engine's group is gone."""


@dataclass(frozen=True)
class Request:
    """A request for a text."""

    #: token ids
    prompt: list[int]
    #: maximum number of tokens
    most: int
    #: number of tokens after which it ends by itself
    own: int
    #: how many of its first tokens are thinking
    thought: int
    #: returns True if the client has disconnected
    gone: Callable[[], bool]
    #: the client compares texts with log probabilities: all tokens come at once
    compared: bool = False
    #: words after the thinking; empty for the default ones
    words: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The number of tokens that it will have."""
        return min(self.most, self.own)

    @property
    def reason(self) -> str:
        """The finish reason that it will have."""
        return "length" if self.most <= self.own else "stop"  # its own end came first


@dataclass(frozen=True)
class Token:
    """A piece of a generated text."""

    #: content or reasoning
    kind: str
    text: str
    #: tokens so far, including this piece
    count: int
    #: finish reason; set on the last piece only
    reason: str | None


def natural_length(body: Mapping[str, Any], max_tokens: int | None, thinking_tokens: int = 0) -> int:
    """Return the number of tokens after which an answer ends by itself: a measurement has the end ignored, other clients do not.

    Args:
        body: the request.
        max_tokens: maximum number of tokens.
        thinking_tokens: number of thinking tokens.
    """
    return max_tokens if max_tokens and body.get("ignore_eos") else ANSWER_TOKENS + thinking_tokens


def adapter_words(name: str) -> tuple[str, ...]:
    """Return the words of an adapter's answers: the model's own, from another one on."""
    start = 1 + sum(name.encode()) % (len(ANSWER_WORDS) - 1)
    return ANSWER_WORDS[start:] + ANSWER_WORDS[:start]


def generate(engine: Process, request: Request) -> Iterator[Token]:
    """Yield the tokens on a fixed schedule: a late token does not delay the next. Raises Aborted, Broken."""
    arrived_s, reason, generated = time.monotonic(), "abort", 0
    words = GARBLED_WORDS if engine.garbled else request.words or (DAMAGED_WORDS if engine.damaged else ANSWER_WORDS)
    try:
        with _hold_slot(engine, request):
            cached = engine.cache.lookup(request.prompt)
            engine.counters.add_prompt(len(request.prompt), cached)
            last_s, due_s = arrived_s, _compute_prompt(engine, request, len(request.prompt) - cached)
            pending, step_tokens = "", 0
            for n, word in zip(range(1, request.tokens + 1), itertools.cycle(words), strict=False):
                if not step_tokens:
                    due_s = _wait_for_step(engine, request, due_s, first=n == 1)
                    step_tokens = engine.counters.step() if n > 1 else 1
                last_s, streams = _count_token(engine, n, arrived_s, last_s)
                generated, step_tokens, pending = n, step_tokens - 1, pending + word
                if step_tokens and not request.compared and n not in (request.tokens, request.thought):
                    continue  # a step's tokens come in one piece
                finish = request.reason if n == request.tokens else None
                yield Token("reasoning" if n <= request.thought else "content", pending, n, finish)
                pending = ""
                if not step_tokens and not (request.compared and engine.instant):
                    rate = _step_rate(engine, len(request.prompt))
                    due_s = max(due_s + 1 / rate / SHARED_RATE ** min(streams - 1, 6), time.monotonic() - 0.5)
            reason = request.reason
    finally:
        engine.counters.count_request(reason, generated, time.monotonic() - arrived_s)


def _step_rate(engine: Process, prompt_tokens: int) -> float:
    """Return the steps per second of one stream behind a prompt of this many tokens."""
    is_slowed = engine.fault() == "slow-at-depth" and prompt_tokens >= DEEP_PROMPT_TOKENS
    return engine.tok_per_s * engine.counters.gain * (DEEP_RATE if is_slowed else 1)


def _wait_for_step(engine: Process, request: Request, due_s: float, *, first: bool) -> float:
    """Wait for a step. Return its time: a prompt that is computed meanwhile delays it."""
    _wait_until(engine, request, due_s)
    if not first and (late_s := engine.steps.after(due_s)) > due_s:
        _wait_until(engine, request, late_s)
        return late_s
    return due_s


def _compute_prompt(engine: Process, request: Request, tokens: int) -> float:
    """Compute a prompt, in chunks if chunked prefill is on. Return the time at which its first token is due."""
    while not engine.steps.turn.acquire(timeout=POLL_S):
        _check_stop(engine, request)
    try:
        now_s, limits = time.monotonic(), engine.limits
        while tokens > 0:
            chunk = min(limits.budget, tokens) if limits.chunked_prefill else tokens
            engine.steps.now = (now_s, now_s + chunk / PREFILL_TOK_PER_S)
            now_s, tokens = engine.steps.now[1], tokens - chunk
            _wait_until(engine, request, now_s)
        return now_s + PREFILL_S
    finally:
        engine.steps.turn.release()


@contextmanager
def _hold_slot(engine: Process, request: Request) -> Iterator[None]:
    """Wait for a free slot."""
    metrics, tokens = engine.counters, len(request.prompt) + request.tokens
    while engine.fault() == "wedge":  # a stopped engine core takes no request, so that its front end counts none
        _check_stop(engine, request)
        time.sleep(POLL_S)
    with metrics.mutex:
        metrics.waiting += 1
    try:
        while not _take_slot(engine, tokens):
            _check_stop(engine, request)
            time.sleep(POLL_S)
    finally:
        with metrics.mutex:
            metrics.waiting -= 1
    try:
        yield
    finally:
        with metrics.mutex:
            metrics.running -= 1
            metrics.held_tokens -= tokens


def _take_slot(engine: Process, tokens: int) -> bool:
    with engine.counters.mutex:
        if engine.counters.running >= engine.limits.max_num_seqs:
            return False
        engine.counters.running += 1
        engine.counters.held_tokens += tokens
        return True


def _wait_until(engine: Process, request: Request, due_s: float) -> None:
    """Wait for a token's time, which never comes in a wedged engine."""
    _check_stop(engine, request)
    while (left_s := due_s - time.monotonic()) > 0 or engine.fault() == "wedge":
        if engine.stopped.wait(min(max(left_s, 0.001), POLL_S) if left_s > 0 else POLL_S):
            break
        _check_stop(engine, request)
    _check_stop(engine, request)


def _check_stop(engine: Process, request: Request) -> None:
    if engine.peer_lost:
        raise GroupBroken
    if engine.stopped.is_set() or request.gone():
        raise Aborted


def _count_token(engine: Process, n: int, arrived_s: float, last_s: float) -> tuple[float, int]:
    """Count a token. Return its time and the number of streams."""
    now_s = time.monotonic()
    engine.counters.count_token(n, now_s - (arrived_s if n == 1 else last_s))
    return now_s, engine.counters.running


class PromptCache:
    """A cache of the last prompts: a prompt's beginning that one of them has too is not computed again.

    Args:
        prompts: how many of them are kept; 0 for none.
    """

    def __init__(self, prompts: int) -> None:
        self._seen: deque[Sequence[int]] = deque(maxlen=prompts)
        self._mutex = threading.Lock()

    def lookup(self, prompt: Sequence[int]) -> int:
        """Return the number of leading tokens that are cached. At least one token is always computed again."""
        with self._mutex:
            cached = max((_shared_prefix(prompt, other) for other in self._seen), default=0)
            self._seen.append(prompt)
        return max(0, min(cached, len(prompt) - 1))


def _shared_prefix(prompt: Sequence[int], other: Sequence[int]) -> int:
    differing = (n for n, (mine, yours) in enumerate(zip(prompt, other, strict=False)) if mine != yours)
    return next(differing, min(len(prompt), len(other)))

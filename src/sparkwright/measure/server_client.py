"""A client that sends prompts of a given number of tokens, with only those options that the server accepts."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api
from sparkwright.engines.prefix_cache import PrefixMeasurement
from sparkwright.measure import stream
from sparkwright.measure.http_probe import Target
from sparkwright.measure.load import Request
from sparkwright.measure.server_counters import counter_increase, read_counters

ANSWER_TOKENS = 4
#: questions about the shared prefix, one per request
PREFIX_QUESTIONS = ("How many ships were counted?", "Who kept the lamp?", "What did the captain write down that night?")
#: common words, each of which is at least one token
COMMON_WORDS = (
    "the of and to in is was he for it with as his on be at by had not "  # words: data
    "are but from or have an they which"
)


@dataclass(frozen=True, slots=True)
class TokenEstimator:
    """Estimates the number of tokens in a prompt for a server's tokenizer."""

    tokens_per_word: float = 1.0
    #: tokens of the chat template and the random prefix
    fixed_tokens: float = 24.0

    @classmethod
    def from_prompts(cls, short: tuple[int, int], long: tuple[int, int]) -> TokenEstimator:
        """Return an estimator from the (words, tokens) of two prompts, or the default if the server did not count the tokens."""
        (short_words, short_tokens), (long_words, long_tokens) = short, long
        if short_tokens <= 0 or long_tokens <= short_tokens or long_words <= short_words:
            return cls()
        per_word = (long_tokens - short_tokens) / (long_words - short_words)
        return cls(per_word, max(0.0, short_tokens - per_word * short_words))

    def build_text(self, tokens: int) -> str:
        """Return random text of about this many tokens, which no prefix cache can contain."""
        return random_text(max(0, round((tokens - self.fixed_tokens) / self.tokens_per_word)))


@dataclass
class ServerClient:
    """Builds requests to a server and sends them, without options that it refused."""

    target: Target
    token_estimator: TokenEstimator = field(default_factory=TokenEstimator)
    #: options that the server has refused so far
    refused_options: tuple[str, ...] = ()
    temperature: float = 0.0

    def build_request(self, text: str, tokens: int, *, at_s: float = 0.0, group: str = "") -> Request:
        """Return a request without `refused_options`. `run` sends it."""
        body = openai_api.build_stream_request(
            self.target.http, self.target.model, text, tokens, temperature=self.temperature
        )
        return Request({key: value for key, value in body.items() if key not in self.refused_options}, at_s, group)

    def build_sized_request(self, prompt_tokens: int, tokens: int, *, at_s: float = 0.0, group: str = "") -> Request:
        """Return a request with a prompt of about this many tokens."""
        return self.build_request(self.token_estimator.build_text(prompt_tokens), tokens, at_s=at_s, group=group)

    def run(self, request: Request, **options: Any) -> stream.Stream:
        """Send a request; if the server refuses options, send it again without them and add them to `refused_options`.

        Raises stream.StreamError. Keyword arguments are passed to `stream.record`.
        """
        body = request.body
        while True:
            try:
                result = stream.measure_target(self.target, body, **options)
            except stream.StreamError as error:
                reduced_body = (
                    openai_api.remove_refused_keys(self.target.http, body)
                    if error.status in openai_api.REFUSAL_STATUSES
                    else None
                )
                if reduced_body is None:
                    raise
                body = reduced_body
                continue
            self.refused_options += tuple(key for key in request.body if key not in body)
            return result


def random_text(word_count: int) -> str:
    """Return random text of this many words, which no prefix cache can contain."""
    words = COMMON_WORDS.split()
    rng = random.Random(secrets.randbits(64))
    return " ".join([secrets.token_hex(16), *(rng.choice(words) for _ in range(word_count))])


def measure_prefix_reuse(
    target: Target, word_count: int, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[PrefixMeasurement]:
    """Send requests with the same new prefix and return a measurement of each. Raises stream.StreamError.

    Args:
        word_count: length of the prefix in words.
        progress: called with the number of finished requests and the total.
    """
    prefix, measurements = random_text(word_count), []
    counters_before = read_counters(target)[0]
    for n, question in enumerate(PREFIX_QUESTIONS, 1):
        body = openai_api.build_stream_request(target.http, target.model, f"{prefix}\n\n{question}", ANSWER_TOKENS)
        measured_stream = stream.measure_target(target, body, cap_s=target.timeout_s)
        counters_after = read_counters(target)[0]
        increases = [
            counter_increase(counters_before, counters_after, name)
            for name in (engine_http.PREFIX_QUERIES, engine_http.PREFIX_HITS)
        ]
        measurements.append(PrefixMeasurement(measured_stream.ttft_s or 0.0, measured_stream.prompt_tokens, *increases))
        counters_before = counters_after
        progress(n, len(PREFIX_QUESTIONS))
    return measurements

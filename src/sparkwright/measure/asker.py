"""Requests to a server: prompts with a given number of tokens, options that the engine accepts, and a long prefix.

A `Ruler` learns the number of tokens per word from two prompts whose tokens the server counted, which also warm it up.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import http as roles
from sparkwright.engines import openai_api
from sparkwright.engines.caches import Sighting
from sparkwright.engines.http import Http
from sparkwright.measure import stream
from sparkwright.measure.http_probe import risen
from sparkwright.measure.load import Request


@dataclass(frozen=True, slots=True)
class Ruler:
    """An estimate of the number of tokens in a prompt on a given server."""

    #: tokens per word
    per_word: float = 1.0
    #: tokens of the chat template and the random prefix
    fixed: float = 24.0

    @classmethod
    def of(cls, few: tuple[int, int], many: tuple[int, int]) -> Ruler:
        """Return a ruler from two prompts, given as (words, tokens), or the default if the server does not count tokens."""
        (words, tokens), (more_words, more_tokens) = few, many
        if tokens <= 0 or more_tokens <= tokens or more_words <= words:
            return cls()
        per_word = (more_tokens - tokens) / (more_words - words)
        return cls(per_word, max(0.0, tokens - per_word * words))

    def text(self, tokens: int) -> str:
        """Return a new prompt of about this many tokens, which no cache can contain."""
        return words_text(max(0, round((tokens - self.fixed) / self.per_word)))


@dataclass
class Asker:
    """Sends requests to a server."""

    http: Http
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    ruler: Ruler = field(default_factory=Ruler)
    #: options that the server has refused, as learned by `run`
    left_out: tuple[str, ...] = ()
    temperature: float = 0.0

    def request(self, text: str, tokens: int, *, at_s: float = 0.0, group: str = "") -> Request:
        """Return a request without the options that this server refuses."""
        full = openai_api.measured_stream(self.http, self.model, text, tokens, temperature=self.temperature)
        return Request({key: value for key, value in full.items() if key not in self.left_out}, at_s, group)

    def sized(self, prompt_tokens: int, tokens: int, *, at_s: float = 0.0, group: str = "") -> Request:
        """Return a request with a prompt of about this many tokens."""
        return self.request(self.ruler.text(prompt_tokens), tokens, at_s=at_s, group=group)

    def run(self, request: Request, **how: Any) -> stream.Stream:
        """Send a request now, and record the options that the server refuses. Raises stream.StreamError.

        Other keyword arguments are passed to `stream.record`.
        """
        body = request.body
        while True:
            try:
                found = stream.run(self.base_url, body, counted=self.http.counted, api_key=self.api_key, **how)
            except stream.StreamError as error:
                plainer = openai_api.plainer(self.http, body) if error.status in openai_api.REFUSALS else None
                if plainer is None:
                    raise
                body = plainer
                continue
            self.left_out += tuple(key for key in request.body if key not in body)
            return found


ANSWER_TOKENS = 4
QUESTIONS = ("How many ships were counted?", "Who kept the lamp?", "What did the captain write down that night?")
#: common words, each of which is at least one token
COMMON = "the of and to in is was he for it with as his on be at by had not are but from or have an they which"  # words: data


def words_text(words: int) -> str:
    """Return a random text of this many words, which no prefix cache can contain."""
    choices = COMMON.split()
    pick = random.Random(secrets.randbits(64))
    return " ".join([secrets.token_hex(16), *(pick.choice(choices) for _ in range(words))])


def sight_prefix(
    http: Http,
    base_url: str,
    model: str,
    words: int,
    counters: Callable[[], Mapping[str, float]],
    *,
    api_key: str = "",
    timeout_s: float = 60,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Sighting]:
    """Send a prefix repeatedly and return the sightings, of which the first is cold. Raises stream.StreamError.

    Args:
        http: the engine's HTTP API.
        base_url: URL of the server.
        model: served name.
        words: length of the prefix in words.
        counters: returns the current values of /metrics.
        api_key: key of the server.
        timeout_s: time limit for each request.
        progress: called with the number of finished sightings and the total.
    """
    prefix, found = words_text(words), []
    before = counters()
    for n, question in enumerate(QUESTIONS, 1):
        body = openai_api.measured_stream(http, model, f"{prefix}\n\n{question}", ANSWER_TOKENS)
        got = stream.run(base_url, body, counted=http.counted, api_key=api_key, cap_s=timeout_s, timeout_s=timeout_s)
        after = counters()
        counted = [risen(before, after, name) for name in (roles.PREFIX_QUERIES, roles.PREFIX_HITS)]
        found.append(Sighting(got.ttft_s or 0.0, got.prompt_tokens, *counted))
        before = after
        progress(n, len(QUESTIONS))
    return found

"""Send one long prefix three times, each with another question behind it, and read the server's counters."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping

from sparkwright.engines import http as roles
from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.engines.prefix import Sighting
from sparkwright.measure import stream
from sparkwright.measure.server_metrics import risen

ANSWER_TOKENS = 4
QUESTIONS = ("How many ships were counted?", "Who kept the lamp?", "What did the captain write down that night?")
#: common words are at least one token each: this many words are at least as many tokens
COMMON = "the of and to in is was he for it with as his on be at by had not are but from or have an they which"  # words: data


def text(words: int) -> str:
    """Return a prefix of this many words that was never sent before."""
    choices = COMMON.split()
    pick = random.Random(secrets.randbits(64))
    return " ".join([secrets.token_hex(16), *(pick.choice(choices) for _ in range(words))])


def sight(
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
    """Return the sightings, the first one cold. Raises stream.StreamError.

    Args:
        http: the engine's HTTP API.
        base_url: of the server.
        model: served name.
        words: length of the prefix.
        counters: returns the current values of /metrics.
        api_key: of the server.
        timeout_s: of each request.
        progress: called with the number of finished sightings and of all.
    """
    prefix, found = text(words), []
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

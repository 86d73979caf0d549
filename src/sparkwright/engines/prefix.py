"""Prefix caching: an engine's reports about it, and the test that a repeated prefix hits the cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sparkwright.engines import concepts

if TYPE_CHECKING:
    from packaging.version import Version

    from sparkwright.engines.engine import Engine


class PrefixCache(Protocol):
    """A reader of one engine's reports about its prefix cache. cache: the labels of its metric about it."""

    def block_tokens(self, cache: Mapping[str, str]) -> int:
        """Return the block size in which prefixes hit, in tokens; 0 if the engine reports none."""

    def is_off(self, cache: Mapping[str, str]) -> bool | None:
        """Return True if the engine reports that prefix caching is off; None if it reports nothing."""

    def is_hybrid(self, cache: Mapping[str, str]) -> bool:
        """Return True if the cache holds recurrent states too."""

    def why(self, version: Version | None) -> tuple[str, str]:
        """Return why a recurrent model may not hit, as a sentence to append, and what helps; empty strings if nothing is known."""


class Untold:
    """The reader for an engine that reports nothing about its prefix cache."""

    def block_tokens(self, cache: Mapping[str, str]) -> int:
        """See PrefixCache."""
        return 0

    def is_off(self, cache: Mapping[str, str]) -> bool | None:
        """See PrefixCache."""
        return None

    def is_hybrid(self, cache: Mapping[str, str]) -> bool:
        """See PrefixCache."""
        return False

    def why(self, version: Version | None) -> tuple[str, str]:
        """See PrefixCache."""
        return "", ""


# The test of the prefix cache: the length of the prefix, and the verdict on the hits.
#
# An engine's own reports, and reasons why a recurrent model may not hit there, are in its folder. Counters are in tokens.

CONCEPT = "the prefix cache"
#: least cached share of the tokens in whole blocks of the prefix at which the cache works
WORKS = 0.5

Verdict = Literal["hits", "few hits", "no hits", "off", "unknown"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A request with the shared prefix."""

    ttft_s: float
    prompt_tokens: int
    #: increase of the server's counter, tokens; None without counters
    queries: float | None
    #: increase of the server's counter, tokens; None without counters
    hits: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a prefix cache."""

    verdict: Verdict
    sentence: str
    fix: str = ""
    #: cached share, at the best repeated request, of the tokens in whole blocks of the prefix (of the prompt, if their number is
    #: not known)
    share: float | None = None


def turned_on(engine: Engine) -> str:
    """Return the line of a recipe that turns prefix caching on; empty if the engine has no flag for it."""
    name = next(iter(concepts.CONCEPTS[CONCEPT].get(engine.name, ())), "")
    return f"{name}: {str(not name.startswith('disable-')).lower()} in the recipe" if name else ""


def asked_for(engine: Engine, flags: Mapping[str, Any]) -> bool:
    """Return True if a recipe explicitly turns prefix caching on: its flag is on, or the one that disables it is off."""
    names = concepts.CONCEPTS[CONCEPT].get(engine.name, ())
    given = engine.flags.named(flags)
    return any(given.get(name) is not name.startswith("disable-") for name in names if given.get(name) is not None)


def off(engine: Engine) -> Judged:
    """Return the verdict on a server that reports that prefix caching is off."""
    return Judged("off", "the engine says that it is off", turned_on(engine))


def judge_verdict(
    engine: Engine,
    sightings: Sequence[Sighting],
    prefix_tokens: int,
    block: int,
    cache: Mapping[str, str],
    version: Version | None,
    *,
    hybrid: bool = False,
) -> Judged:
    """Return the verdict on repeated requests with the same prefix, the first of them cold.

    prefix_tokens: the least number of tokens in the prefix alone.
    """
    if engine.prefix_cache.is_off(cache):
        return off(engine)
    again = [sighting for sighting in sightings[1:] if sighting.hits is not None]
    if not again:
        return Judged("unknown", "the server has no counters of its prefix cache")
    best, prompt_tokens = max((observation.hits or 0, observation.prompt_tokens) for observation in again)
    full = prefix_tokens // block * block
    if best > full:  # the tokenizer made more tokens of the prefix than it has words; the prompt is no shorter
        full = prompt_tokens // block * block
    share = best / full if full else 0.0
    cold, warm = sightings[0].ttft_s, min(sighting.ttft_s for sighting in sightings[1:])
    times = f"first token after {cold * 1000:.0f} ms cold, {warm * 1000:.0f} ms warm"
    counted = f"{best:.0f} of {full} cached tokens" + (f" in blocks of {block}" if block > 1 else "")
    if share >= WORKS:
        return Judged("hits", f"{counted}; {times}", share=share)
    message = f"{counted} although seen {len(sightings)} times; {times}"
    recurrent = hybrid or engine.prefix_cache.is_hybrid(cache)
    why, fix = engine.prefix_cache.why(version) if recurrent else ("", "look for evictions: is the KV cache full?")
    verdict: Verdict = "few hits" if best else "no hits"
    return Judged(verdict, f"{message}{why}", fix, share)


def wanted_tokens(block: int) -> int:
    """Return the length of the test's prefix in tokens: more than two blocks."""
    return math.ceil(2.25 * block) + 32

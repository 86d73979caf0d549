"""The prefix cache of an engine: the engine's reports about it, and the verdict of the prefix-cache test. Counters are in tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sparkwright.engines.options import concept_flags

if TYPE_CHECKING:
    from packaging.version import Version

PREFIX_CACHE_CONCEPT = "the prefix cache"
#: the cache works if at least this share of the tokens in whole blocks of the prefix is cached
MIN_HIT_SHARE = 0.5

Verdict = Literal["hits", "few hits", "no hits", "off", "unknown"]


class PrefixCache(Protocol):
    """A reader of an engine's reports about its prefix cache. cache_labels: the labels of the engine's cache metric."""

    def block_tokens(self, cache_labels: Mapping[str, str]) -> int:
        """Return the number of tokens in a cached block; 0 if the engine does not report it."""

    def is_off(self, cache_labels: Mapping[str, str]) -> bool | None:
        """Return True if the engine reports that prefix caching is off; None if it does not report the setting."""

    def is_hybrid(self, cache_labels: Mapping[str, str]) -> bool:
        """Return True if the cache also contains recurrent states."""

    def explain_misses(self, version: Version | None) -> tuple[str, str]:
        """Return why a recurrent model may miss, as a sentence to append to a message, and the fix; empty if unknown."""


class UnreportedPrefixCache:
    """The PrefixCache of an engine that reports nothing about it."""

    def block_tokens(self, cache_labels: Mapping[str, str]) -> int:
        return 0

    def is_off(self, cache_labels: Mapping[str, str]) -> bool | None:
        return None

    def is_hybrid(self, cache_labels: Mapping[str, str]) -> bool:
        return False

    def explain_misses(self, version: Version | None) -> tuple[str, str]:
        return "", ""


@dataclass(frozen=True, slots=True)
class PrefixMeasurement:
    """The measurements of one request with the shared prefix."""

    ttft_s: float
    prompt_tokens: int
    #: increase of the server's counters of queried and hit tokens; None if it has no counters
    queries: float | None
    hits: float | None


@dataclass(frozen=True, slots=True)
class PrefixCacheVerdict:
    """The verdict on a prefix cache."""

    verdict: Verdict
    sentence: str
    fix: str = ""
    #: cached share of the tokens in whole blocks of the prefix, or of the prompt if the number of tokens in the prefix is unknown;
    #: the largest of all repeated requests
    share: float | None = None


def recipe_line(engine: str) -> str:
    """Return the recipe line that turns prefix caching on; empty if the engine has no flag for it."""
    name = next(iter(concept_flags(engine, PREFIX_CACHE_CONCEPT)), "")
    return f"{name}: {str(not name.startswith('disable-')).lower()} in the recipe" if name else ""


def is_requested(engine: str, flags: Mapping[str, Any]) -> bool:
    """Return True if flags, by canonical name, turn prefix caching on: its flag is on, or the flag that disables it is off."""
    names = concept_flags(engine, PREFIX_CACHE_CONCEPT)
    return any(flags.get(name) is not name.startswith("disable-") for name in names if flags.get(name) is not None)


def off_verdict(engine: str) -> PrefixCacheVerdict:
    """Return the verdict on a server that reports that prefix caching is off."""
    return PrefixCacheVerdict("off", "the engine reports that it is off", recipe_line(engine))


def evaluate_prefix_cache(
    engine: str,
    prefix_cache: PrefixCache,
    measurements: Sequence[PrefixMeasurement],
    prefix_tokens: int,
    block_tokens: int,
    cache_labels: Mapping[str, str],
    version: Version | None,
    *,
    hybrid: bool = False,
) -> PrefixCacheVerdict:
    """Return the verdict on repeated requests with the same prefix, the first of them cold.

    engine: the engine's name. prefix_tokens: minimum number of tokens in the prefix.
    """
    if prefix_cache.is_off(cache_labels):
        return off_verdict(engine)
    repeat_measurements = [measurement for measurement in measurements[1:] if measurement.hits is not None]
    if not repeat_measurements:
        return PrefixCacheVerdict("unknown", "the server has no counters for its prefix cache")
    cached_tokens, prompt_tokens = max(
        (measurement.hits or 0, measurement.prompt_tokens) for measurement in repeat_measurements
    )
    expected_tokens = prefix_tokens // block_tokens * block_tokens
    # prefix_tokens counts words; if the tokenizer made more tokens of them, the prompt is the upper bound
    if cached_tokens > expected_tokens:
        expected_tokens = prompt_tokens // block_tokens * block_tokens
    share = cached_tokens / expected_tokens if expected_tokens else 0.0
    cold_s, warm_s = measurements[0].ttft_s, min(measurement.ttft_s for measurement in measurements[1:])
    time_text = f"first token after {cold_s * 1000:.0f} ms cold, {warm_s * 1000:.0f} ms warm"
    blocks = f" in blocks of {block_tokens}" if block_tokens > 1 else ""
    count_text = f"{cached_tokens:.0f} of {expected_tokens} cached tokens{blocks}"
    if share >= MIN_HIT_SHARE:
        return PrefixCacheVerdict("hits", f"{count_text}; {time_text}", share=share)
    is_recurrent = hybrid or prefix_cache.is_hybrid(cache_labels)
    reason, fix = (
        prefix_cache.explain_misses(version) if is_recurrent else ("", "look for evictions: is the KV cache full?")
    )
    message = f"{count_text} although it was sent {len(measurements)} times; {time_text}{reason}"
    return PrefixCacheVerdict("few hits" if cached_tokens else "no hits", message, fix, share)


def prefix_length_tokens(block_tokens: int) -> int:
    """Return the length of the test's prefix in tokens: more than two blocks."""
    return math.ceil(2.25 * block_tokens) + 32

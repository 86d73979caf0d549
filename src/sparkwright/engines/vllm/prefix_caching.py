"""The prefix cache: how long a prefix must be to hit at all, and why it may never do.

Sources: vLLM 0.11 to 0.33 as docs/measuring.md and the rows name them; 0.32.0's own /metrics. Counters are in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packaging.version import Version

from sparkwright.engines import concepts
from sparkwright.engines.engine import Engine
from sparkwright.engines.vllm.versions import at_least, within

FLAG = "enable-prefix-caching"
ISSUE = "vllm issue 36493"
#: cached tokens of what whole blocks of the prefix hold: from here on it works
WORKS = 0.5

Verdict = Literal["hits", "few hits", "no hits", "off", "unknown"]

#: (from, until, what it means for a recurrent hybrid)
HYBRID: tuple[tuple[str, str, str], ...] = (
    ("", "0.11.1", "this engine turns it off for recurrent models; 0.15 is the first with it for Gated DeltaNet"),
    ("0.11.1", "0.15.0", "only Mamba's family has it here; 0.15 is the first with it for Gated DeltaNet"),
    ("0.15.0", "", "a recurrent layer's state is kept at the ends of whole blocks only, and of few of them"),
)

#: (from, what helps a recurrent hybrid there, its source)
HELPS: tuple[tuple[str, str, str], ...] = (
    ("0.15.0", "an unquantized KV cache (kv-cache-dtype auto) halves the block", "the formula of its block"),
    ("0.24.0", "states are admitted by their use", "#37898"),
    ("0.26.0", "prefix-match-unit lets a part of a block hit", "#46384"),
)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One request with the shared prefix. queries, hits: what the server's counters rose by, tokens; None without counters."""

    ttft_s: float
    prompt_tokens: int
    queries: float | None
    hits: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """share: of the tokens in whole blocks of the prefix (of the prompt, where it is not known how many those are), what the best repeated sighting found cached."""

    verdict: Verdict
    sentence: str
    fix: str = ""
    share: float | None = None


def block_tokens(cache: Mapping[str, str], from_log: int | None, usual: int) -> int:
    """The block in which prefixes hit. cache: of /metrics, where 0.18 to 0.22 tell too little for hybrids; from_log: authority.

    usual: where neither tells it.
    """
    reported = (cache.get(name, "") for name in ("block_size", "effective_attention_block_size"))
    return max([from_log or 0, *(int(one) for one in reported if one.isdigit())]) or usual


def is_off(cache: Mapping[str, str]) -> bool | None:
    """Whether the engine itself says that there is none; None when it says nothing."""
    answer = cache.get("enable_prefix_caching")
    return None if answer not in ("True", "False") else answer == "False"


def is_hybrid(cache: Mapping[str, str]) -> bool:
    """Whether the cache holds recurrent states too."""
    padded, mode = cache.get("mamba_page_size_padded", "None"), cache.get("mamba_cache_mode", "none")
    return padded != "None" or mode not in ("none", "None", "")


def asked_for(engine: Engine, flags: Mapping[str, Any]) -> bool:
    """Whether a recipe for this engine asks for it in so many words: its flag is on, or the one that turns it off is off."""
    names = concepts.CONCEPTS["the prefix cache"].get(engine.name, ())
    given = engine.flags.named(flags)
    return any(given.get(name) is not name.startswith("disable-") for name in names if given.get(name) is not None)


def judge(
    sightings: Sequence[Sighting],
    prefix_tokens: int,
    block: int,
    cache: Mapping[str, str],
    version: Version | None,
    *,
    hybrid: bool = False,
) -> Judged:
    """What three sightings of a prefix tell. prefix_tokens: of it alone, at least."""
    if is_off(cache):
        return Judged("off", "the engine says that it is off", f"{FLAG}: true in the recipe")
    again = [one for one in sightings[1:] if one.hits is not None]
    if not again:
        return Judged("unknown", "the server has no counters of its prefix cache")
    best, prompt_tokens = max((one.hits or 0, one.prompt_tokens) for one in again)
    full = prefix_tokens // block * block
    if best > full:  # the tokenizer made more tokens of the prefix than it has words; the prompt is no shorter
        full = prompt_tokens // block * block
    share = best / full if full else 0.0
    cold, warm = sightings[0].ttft_s, min(one.ttft_s for one in sightings[1:])
    times = f"first token after {cold * 1000:.0f} ms cold, {warm * 1000:.0f} ms warm"
    counted = f"{best:.0f} of {full} cached tokens" + (f" in blocks of {block}" if block > 1 else "")
    if share >= WORKS:
        return Judged("hits", f"{counted}; {times}", share=share)
    message = f"{counted} although seen {len(sightings)} times; {times}"
    why, fix = _why(version) if hybrid or is_hybrid(cache) else ("", "look for evictions: is the KV cache full?")
    verdict: Verdict = "few hits" if best else "no hits"
    return Judged(verdict, f"{message}{why}", fix, share)


def _why(version: Version | None) -> tuple[str, str]:
    """A recurrent model's reason, and what helps on this engine or from which one on."""
    because = next((text for since, until, text in HYBRID if within(version, since, until)), HYBRID[-1][2])
    here = [f"{text} ({source})" for since, text, source in HELPS if at_least(version, since)]
    later = [f"from {since} {text} ({source})" for since, text, source in HELPS if at_least(version, since) is not True]
    fix = "; ".join([*here, *later, "prompts shorter than a block can never hit"])
    return f". A recurrent hybrid ({ISSUE}): {because}", fix


def wanted_tokens(block: int) -> int:
    """How long the test's prefix must be: more than two blocks."""
    return math.ceil(2.25 * block) + 32

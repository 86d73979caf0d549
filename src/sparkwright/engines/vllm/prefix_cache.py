"""vLLM's reports about its prefix cache, and reasons why a recurrent model may never hit it.

Sources: vLLM 0.11 to 0.33 as docs/measuring.md and the rows name them; 0.32.0's own /metrics.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from sparkwright.engines.vllm.versions import at_least, within

ISSUE = "vllm issue 36493"

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


def block_tokens(cache: Mapping[str, str]) -> int:
    """Return the block size in which prefixes hit, from /metrics; 0 if it has none. 0.18 to 0.22 report too small a block for
    hybrids."""
    reported = (cache.get(name, "") for name in ("block_size", "effective_attention_block_size"))
    return max([0, *(int(item) for item in reported if item.isdigit())])


def is_off(cache: Mapping[str, str]) -> bool | None:
    """Return True if the engine reports that prefix caching is off; None if it reports nothing."""
    answer = cache.get("enable_prefix_caching")
    return None if answer not in ("True", "False") else answer == "False"


def is_hybrid(cache: Mapping[str, str]) -> bool:
    """Return True if the cache holds recurrent states too."""
    padded, mode = cache.get("mamba_page_size_padded", "None"), cache.get("mamba_cache_mode", "none")
    return padded != "None" or mode not in ("none", "None", "")


def why(version: Version | None) -> tuple[str, str]:
    """Return why a recurrent model may not hit, and what helps on this engine or from which release on."""
    because = next((text for since, until, text in HYBRID if within(version, since, until)), HYBRID[-1][2])
    here = [f"{text} ({source})" for since, text, source in HELPS if at_least(version, since)]
    later = [f"from {since} {text} ({source})" for since, text, source in HELPS if at_least(version, since) is not True]
    fix = "; ".join([*here, *later, "prompts shorter than a block can never hit"])
    return f". A recurrent hybrid ({ISSUE}): {because}", fix

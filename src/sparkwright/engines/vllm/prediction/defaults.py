"""Defaults of vLLM by release, on a GB10.

Each row: first release, value and source. Nothing is guessed for a version that is not known: the answer is then None, unless all
releases agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from sparkwright.engines.vllm.versions import at_least


@dataclass(frozen=True, slots=True)
class Default:
    """A default value from a release on."""

    #: first release with it; empty for always
    since: str
    value: Any
    source: str


CHUNKED_PREFILL = "chunked prefill"
PREFIX_CACHING_DENSE = "prefix caching, dense"
PREFIX_CACHING_HYBRID = "prefix caching, recurrent hybrid"
PREFIX_CACHING_ATTENTION_FREE = "prefix caching, no attention"
MEMORY_UTILIZATION = "gpu-memory-utilization"
MAX_NUM_BATCHED_TOKENS = "max-num-batched-tokens"
MAX_NUM_SEQS = "max-num-seqs"

#: first release that obeys the flag: V1 before it always set chunked prefill to True (source of 0.11.0; issues
#: 18547, 20914), and prefix caching of a recurrent model to False, "since it is not yet supported" (source of 0.11.0)
CHUNKED_PREFILL_OPTIONAL_SINCE = "0.11.1"
RECURRENT_PREFIX_CACHING_SINCE = "0.11.1"
#: first release that keeps a recurrent layer's state at the ends of whole blocks only, unless the mode is `all`; and the first
#: that refuses `all`
ALIGN_ONLY_SINCE = "0.28.0"
ALL_REFUSED_SINCE = "0.32.0"

#: oldest first
DEFAULTS: dict[str, tuple[Default, ...]] = {
    CHUNKED_PREFILL: (
        Default("", True, "V1's default for every generative model, recurrent ones too; V0 was removed in 0.11.0"),
    ),
    PREFIX_CACHING_DENSE: (Default("", True, "V1's default"),),
    PREFIX_CACHING_HYBRID: (
        Default("", False, "forced off until 0.11.0, opt-in until 0.27"),
        Default("0.28.0", True, "#50991; the config dumps of real 0.32.0 logs"),
    ),
    PREFIX_CACHING_ATTENTION_FREE: (Default("", False, "source of 0.33.0"),),
    MEMORY_UTILIZATION: (
        Default("", 0.9, "the help of 0.11 to 0.19"),
        Default("0.20.0", 0.92, "#38284; the help of 0.22.1 and 0.32.0"),
    ),
    MAX_NUM_BATCHED_TOKENS: (
        Default("", 2048, "NVML names no memory size on a GB10: the small tier, and by name from 0.33 on"),
    ),
    MAX_NUM_SEQS: (Default("", 256, "the same tier"),),
}


def default(name: str, version: Version | None) -> Any:
    """Return the default of a setting; None if it depends on the version and that is not known."""
    first, *later = DEFAULTS[name]
    value = first.value
    for row in later:
        reached = at_least(version, row.since)
        if reached is None:
            return None
        if reached:
            value = row.value
    return value

"""Ascend-vLLM, for recipes with `platform: ascend`: it has another scheduler, set through --additional-config.

Source: Ascend-vLLM's guide to its scheduler and features. Keys that vLLM itself does not have go into that one JSON option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.vllm.flags import flags as flag_words

CONFIG = "additional-config"
SCHEDULER = "ascend_scheduler_config"
ENABLED = "enabled"
CHUNKED = "chunked_prefill_enabled"
BUDGET_STEP = 256


def scheduler(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scheduler's settings; empty if the flags set none."""
    config = flag_words.value(flags, CONFIG)
    found = config.get(SCHEDULER) if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def chunked_prefill(flags: Mapping[str, Any]) -> bool:
    """Return True if prompts are prefilled in chunks: the Ascend scheduler turns that off unless its settings turn it on."""
    own = scheduler(flags)
    if own.get(ENABLED):
        return bool(own.get(CHUNKED, False))
    return flag_words.value(flags, "enable-chunked-prefill") is not False


def with_scheduler(flags: Mapping[str, Any], *, enabled: bool, chunked: bool) -> dict[str, Any]:
    """Return the flags with both settings added to --additional-config."""
    config = flag_words.value(flags, CONFIG)
    rest = dict(config) if isinstance(config, Mapping) else {}
    others = {name: message for name, message in flags.items() if name != CONFIG}
    return {**others, CONFIG: {**rest, SCHEDULER: {**scheduler(flags), ENABLED: enabled, CHUNKED: chunked}}}

"""Implementation of engines.advice.Advice for a custom server, about which only its recipe is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from sparkwright.engines.advice import (
    Decision,
    EffectiveSettings,
    OnImpossible,
    PrefillExpectation,
    ServerRequest,
    UnknownKind,
    decide_without_switch,
)
from sparkwright.engines.findings import Finding
from sparkwright.engines.memory import Memory, MemoryPart
from sparkwright.engines.openai import flags as openai_flags
from sparkwright.engines.openai import rules
from sparkwright.trust.bounds import count_or_none
from sparkwright.units import GIB

#: empty, because no flag is known
CHUNKED_PREFILL_FLAG = ""
RULES = (rules.RULES,)
NO_SWITCH_REASON = "whether this server supports it, and by which argument, is unknown; set it in its `command`"


def version(text: str | None) -> Version | None:
    """Return a PEP 440 version; None for anything else."""
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


def kind(model: Mapping[str, Any]) -> UnknownKind:
    return UnknownKind(
        "a model whose kind is unknown for this server", count_or_none(model.get("max_position_embeddings"))
    )


def relevant_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the context length, if the config has it."""
    context = count_or_none(config.get("max_position_embeddings"))
    return {} if context is None else {"max_position_embeddings": context}


def decide_chunked_prefill(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    expected: PrefillExpectation,
    on_impossible: OnImpossible,
) -> Decision:
    """Return the decision about chunked prefill; no switch for it is known for a custom server."""
    return decide_without_switch(request, "an OpenAI-compatible server", expected, on_impossible, NO_SWITCH_REASON)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed_options: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    return rules.RULES.check(request)


def effective_settings(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> EffectiveSettings:
    """Return the context length, if the recipe sets it."""
    return EffectiveSettings(max_model_len=openai_flags.context(request.flags))


def memory(flags: Mapping[str, Any], lock_entry: Mapping[str, Any]) -> Memory:
    """Return the memory that the recipe sets; unknown if it is not set or invalid."""
    memory_gib = flags.get(openai_flags.MEMORY)
    if memory_gib is None or openai_flags.find_value_problem(flags, openai_flags.MEMORY):
        return Memory()
    size = int(float(memory_gib) * GIB)
    return Memory(bytes=size, parts=(MemoryPart("the server", size, f"the recipe's {openai_flags.MEMORY}"),))


def chunked_prefill_variants(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return None, since no switch for chunked prefill is known."""
    return None

"""llama.cpp's implementation of engines.advice.Advice, and an estimate of llama-server's memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

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
from sparkwright.engines.llama_cpp import flags as llama_flags
from sparkwright.engines.llama_cpp import rules
from sparkwright.engines.llama_cpp.files import SUFFIX
from sparkwright.engines.llama_cpp.flags import parse_integer
from sparkwright.engines.llama_cpp.gguf import ARCHITECTURE_KEY, Header, is_integer
from sparkwright.engines.memory import Memory, MemoryPart
from sparkwright.trust.bounds import count_or_none
from sparkwright.units import GIB, MIB

#: empty, because llama.cpp has no flag for it
CHUNKED_PREFILL_FLAG = ""
RULES = (rules.RULES,)
NO_SWITCH_REASON = "it always processes prompts in chunks of batch-size tokens"
DEFAULT_BATCH_TOKENS = 2048
_BUILD_PATTERN = re.compile(r"\bb?(\d{4,6})\b")


def version(text: str | None) -> Version | None:
    """Return the build number in a string, such as 11549 for "b11549-7e4c0a9"; None if there is none."""
    match = _BUILD_PATTERN.search(text or "")
    return Version(match[1]) if match else None


def kind(model: Mapping[str, Any]) -> UnknownKind:
    """Return an unknown kind: a GGUF file has no config.json."""
    return UnknownKind("a GGUF model")


def relevant_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an empty mapping: llama.cpp does not read config.json."""
    return {}


def decide_chunked_prefill(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    expected: PrefillExpectation,
    on_impossible: OnImpossible,
) -> Decision:
    """Return the decision about chunked prefill; llama.cpp has no switch for it."""
    return decide_without_switch(request, "llama.cpp", expected, on_impossible, NO_SWITCH_REASON)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed_options: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    case = rules.Case(
        replace(request, flags=llama_flags.normalize(request.flags)),
        f"b{version.major}" if version else None,
        listed_options,
    )
    return rules.RULES.check(case)


def effective_settings(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> EffectiveSettings:
    """Return the settings that follow from the flags."""
    flags = llama_flags.normalize(request.flags)
    return EffectiveSettings(
        chunked_prefill=True,
        prefix_caching=llama_flags.value(flags, "cache-prompt") is not False,
        budget=llama_flags.parse_positive_integer(llama_flags.value(flags, llama_flags.BUDGET_FLAG))
        or DEFAULT_BATCH_TOKENS,
        max_num_seqs=llama_flags.slot_count(flags),
        max_model_len=llama_flags.context(flags),
    )


def memory(flags: Mapping[str, Any], lock_entry: Mapping[str, Any]) -> Memory:
    """Return the memory needed for the locked GGUF files, the KV cache, cached prompts and compute buffers.

    The size of the KV cache is computed from the model's header in the lock; without a header it is taken as 0.
    """
    files, flags = lock_entry.get("files") or (), llama_flags.normalize(flags)
    file_sizes = {file["path"]: file["size_bytes"] for file in files if str(file["path"]).lower().endswith(SUFFIX)}
    if not file_sizes:
        return Memory()
    values = lock_entry.get("config")
    header = Header(0, 0, dict(values)) if isinstance(values, Mapping) and values.get(ARCHITECTURE_KEY) else None
    needs = estimate_memory(file_sizes, flags, header)
    tokens = cache_tokens(header, flags) if header and needs.kv else None
    cache = (
        f"{tokens} tokens, from the model's header"
        if tokens
        else "its size can't be determined from the model's header"
    )
    return Memory(
        bytes=needs.total,
        weights_bytes=needs.weights,
        parts=(
            MemoryPart("weights", needs.weights, "spark.lock"),
            MemoryPart("KV cache", needs.kv, cache, assumed=not tokens),
            MemoryPart("earlier prompts", needs.prompt_cache, llama_flags.PROMPT_CACHE, later=True),
            MemoryPart(
                "host's side",
                needs.overhead,
                "compute buffers, CUDA context, the process itself",
                assumed=True,
                host=True,
            ),
        ),
        flag=llama_flags.CONTEXT,
        value=llama_flags.parse_positive_integer(llama_flags.value(flags, llama_flags.CONTEXT)) or 0,
        per_token_bytes=needs.kv / tokens if tokens else 0,
    )


def chunked_prefill_variants(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return None: llama.cpp has no switch for chunked prefill."""
    return None


# Estimate of llama-server's memory.
#
# Sources: src/llama-kv-cache.cpp, and the "KV buffer size" lines of b11549 (tests/real_llama/test_memory.py). The estimate for the KV
# cache is exact for a model with attention in all layers, and an upper bound for models with recurrent layers, sliding windows or MLA.

#: (bytes, elements) of a block, by cache type (ggml-common.h)
CACHE_TYPES: dict[str, tuple[int, int]] = {
    "f32": (4, 1),
    "f16": (2, 1),
    "bf16": (2, 1),
    "q8_0": (34, 32),
    "q5_1": (24, 32),
    "q5_0": (22, 32),
    "q4_1": (20, 32),
    "q4_0": (18, 32),
    "iq4_nl": (18, 32),
}
DEFAULT_CACHE_TYPE = "f16"
#: compute buffers, CUDA context and the process itself: a conservative estimate; with a ubatch of 512, 0.3 to 1.2 GiB is
#: typical
OVERHEAD_BYTES = 3 * GIB // 2
#: default of --cache-ram, the memory for earlier prompts outside the KV cache
DEFAULT_PROMPT_CACHE_MIB = 8192
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The memory that a server needs, in bytes."""

    weights: int
    #: 0 if unknown
    kv: int
    #: limit for cached earlier prompts; used gradually while the server runs
    prompt_cache: int
    overhead: int = OVERHEAD_BYTES

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.prompt_cache + self.overhead


def estimate_memory(file_sizes: Mapping[str, int], flags: Mapping[str, Any], header: Header | None) -> MemoryNeeds:
    """Return the memory that a server with these flags needs.

    Args:
        file_sizes: bytes by file, including mmproj and draft model.
        flags: flags by canonical name.
        header: the model's header; None if unknown.
    """
    weights = sum(file_sizes.values())
    kv = kv_bytes(header, flags) if header is not None else None
    prompt_cache_mib = parse_integer(llama_flags.value(flags, llama_flags.PROMPT_CACHE))
    max_prompt_cache_mib = (
        DEFAULT_PROMPT_CACHE_MIB if prompt_cache_mib is None or prompt_cache_mib < 0 else prompt_cache_mib
    )
    return MemoryNeeds(weights, kv or 0, max_prompt_cache_mib * MIB)


def cache_tokens(header: Header, flags: Mapping[str, Any]) -> int | None:
    """Return the size of the cache for all slots in tokens; None if neither the flags nor the header set a context.

    A context beyond the trained length is allocated completely, although no request can be longer than the trained length.
    """
    trained_tokens = count_or_none(header.architecture_value("context_length")) or 0
    slot_tokens = llama_flags.context(flags) or llama_flags.round_up_context(trained_tokens)
    return slot_tokens * (1 if llama_flags.has_unified_cache(flags) else llama_flags.slot_count(flags)) or None


def kv_bytes(header: Header, flags: Mapping[str, Any]) -> int | None:
    """Return the size of the KV cache in bytes; None if the header lacks a number that determines it."""
    tokens, layers = cache_tokens(header, flags), count_or_none(header.architecture_value("block_count"))
    if tokens is None or layers is None or layers > MAX_LAYERS:
        return None
    heads = _total_kv_heads(header, layers)
    widths = _head_dimensions(header)
    if heads is None or widths is None:
        return None
    types = (flags.get("cache-type-k"), flags.get("cache-type-v"))
    return sum(
        _quantized_bytes(tokens * heads * width, cache_type) for width, cache_type in zip(widths, types, strict=True)
    )


def _quantized_bytes(elements: int, cache_type: Any) -> int:
    block_bytes, block_elements = CACHE_TYPES.get(str(cache_type or DEFAULT_CACHE_TYPE), CACHE_TYPES["f32"])
    return -(-elements // block_elements) * block_bytes


def _total_kv_heads(header: Header, layers: int) -> int | None:
    """Return the number of KV heads in all layers. The header has one number for all layers, or a list with one per layer."""
    heads = header.architecture_value("attention.head_count_kv")
    heads = header.architecture_value("attention.head_count") if heads is None else heads
    counts = [count_or_none(layer) for layer in heads[:layers]] if isinstance(heads, list) else [count_or_none(heads)]
    total = sum(count for count in counts if count is not None)
    if None in counts:
        return None
    return total if isinstance(heads, list) else total * layers


def _head_dimensions(header: Header) -> tuple[int, int] | None:
    """Return the key and value dimensions of an attention head; None if unknown."""
    lengths = [count_or_none(header.architecture_value(f"attention.{part}_length")) for part in ("key", "value")]
    embedding_length = count_or_none(header.architecture_value("embedding_length"))
    heads = header.architecture_value("attention.head_count")
    if isinstance(heads, list) and is_integer(heads):
        heads = max(heads)
    heads = count_or_none(heads)
    default_length = embedding_length // heads if embedding_length and heads else None
    key, value = (default_length if length is None else length for length in lengths)
    return None if key is None or value is None else (key, value)

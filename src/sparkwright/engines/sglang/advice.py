"""SGLang's implementation of engines.advice.Advice."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import (
    Decision,
    EffectiveSettings,
    OnImpossible,
    PrefillExpectation,
    ServerRequest,
    UnknownKind,
    decide_enabled,
)
from sparkwright.engines.budget import GB10_BYTES
from sparkwright.engines.findings import Finding
from sparkwright.engines.memory import (
    ASSUMED_HOST_BYTES,
    PYTORCH_WEIGHT_SUFFIXES,
    Memory,
    MemoryPart,
    read_cpu_part,
    sum_weights,
)
from sparkwright.engines.sglang import flags as sglang_flags
from sparkwright.engines.sglang import rules
from sparkwright.trust.bounds import count_or_none
from sparkwright.units import GB, MIB

CHUNKED_PREFILL_FLAG = sglang_flags.CHUNK_SIZE
RULES = (rules.RULES,)
CHUNKING_OFF_SIZE = -1
#: default chunk size on GPUs with 90 to 160 GB (source of 0.5.23)
DEFAULT_CHUNK_TOKENS = 8192
#: smallest chunk in SGLang's formula for the memory of computation (source of 0.5.9)
MIN_CHUNK_TOKENS = 2048
#: default of max-prefill-tokens in that formula
DEFAULT_PREFILL_TOKENS = 16384
#: number of requests in the largest CUDA graph on GPUs with 90 to 160 GB, in that formula
MAX_GRAPH_REQUESTS = 256
GRAPHS_OFF_FLAG = "disable-cuda-graph"
#: the cache on the CPU as a multiple of the KV cache, if no size is set (source of 0.5.9 and 0.5.23, mem_cache/memory_pool_host.py)
DEFAULT_HICACHE_RATIO = 2.0
#: keys of config.json with the number of rows, and with the width, of the table of n-gram embeddings
NGRAM_TABLE_KEYS = ("ngram_vocab_size_base", "ple_embed_dim")
MAX_TEXT_CHARS = 200
_VERSION_PATTERN = re.compile(r"(?<![\d.])v?(\d+\.\d+\.\d+(?:\.?post\d+)?(?:rc\d+)?)(?![\d.])")


def version(text: str | None) -> Version | None:
    """Return the release in a string, such as 0.5.23 for "v0.5.23-cu130"; None if there is none."""
    match = _VERSION_PATTERN.search((text or "")[:MAX_TEXT_CHARS])
    return Version(match[1]) if match else None


def kind(model: Mapping[str, Any]) -> UnknownKind:
    """Return an unknown kind with the model's maximum sequence length."""
    return UnknownKind("a model whose kind is unknown for SGLang", count_or_none(model.get("max_position_embeddings")))


def relevant_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of config.json for the maximum sequence length and the table of n-gram embeddings."""
    text_config = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    sizes = {
        name: count_or_none((text_config or {}).get(name)) for name in ("max_position_embeddings", *NGRAM_TABLE_KEYS)
    }
    return {name: size for name, size in sizes.items() if size is not None}


def decide_chunked_prefill(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    expected: PrefillExpectation,
    on_impossible: OnImpossible,
) -> Decision:
    """Return the decision about chunked prefill, which is on by default; a chunk size of -1 turns it off."""
    if expected == "disabled":
        other_flags = {
            name: setting
            for name, setting in request.flags.items()
            if sglang_flags.canonical(name) != sglang_flags.CHUNK_SIZE
        }
        return Decision({**other_flags, sglang_flags.CHUNK_SIZE: CHUNKING_OFF_SIZE}, "disabled")
    if expected == "enabled":
        is_off = sglang_flags.chunk_size(sglang_flags.normalize(request.flags)) == 0
        return decide_enabled(request, sglang_flags.CHUNK_SIZE, is_off=is_off)
    return Decision(request.flags, expected)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed_options: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    case = rules.Case(
        replace(request, flags=sglang_flags.normalize(request.flags)),
        str(version) if version else None,
        listed_options,
        kind(model).max_position_embeddings,
    )
    return rules.RULES.check(case)


def effective_settings(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> EffectiveSettings:
    """Return the settings in the flags; those that SGLang chooses itself are unknown until it runs."""
    flags = sglang_flags.normalize(request.flags)
    chunk_tokens = sglang_flags.chunk_size(flags)
    return EffectiveSettings(
        chunked_prefill=None if chunk_tokens is None else chunk_tokens > 0,
        prefix_caching=sglang_flags.value(flags, sglang_flags.RADIX_OFF) is not True,
        budget=chunk_tokens or None,
        max_num_seqs=sglang_flags.parse_integer(sglang_flags.value(flags, sglang_flags.SLOTS)) or 0,
        max_model_len=sglang_flags.context(flags),
        memory_utilization=sglang_flags.memory_share(flags) or None,
    )


def memory(flags: Mapping[str, Any], lock_entry: Mapping[str, Any]) -> Memory:
    """Return the share for weights and KV cache, and the additional memory for computation; unknown if the flags set no share.

    SGLang applies the share to the memory that is free at its start. Here it applies to all memory, the upper bound. The memory
    for computation is estimated with the formula by which SGLang chooses a share (source of 0.5.9 server_args.py, 0.5.23
    arg_groups/memory_hook.py): 512 MiB, 1.5 MiB per token of a chunk, 2 MiB per request of the largest CUDA graph. Without
    chunked prefill, `max-prefill-tokens` counts as the chunk.
    """
    flags = sglang_flags.normalize(flags)
    share = sglang_flags.memory_share(flags)
    if not share:
        return Memory()
    chunk_tokens = sglang_flags.chunk_size(flags)
    max_prefill_tokens = sglang_flags.parse_integer(sglang_flags.value(flags, sglang_flags.MAX_PREFILL_TOKENS))
    unchunked_tokens = max_prefill_tokens or DEFAULT_PREFILL_TOKENS
    tokens = max(MIN_CHUNK_TOKENS, DEFAULT_CHUNK_TOKENS if chunk_tokens is None else chunk_tokens or unchunked_tokens)
    graph_requests = 0 if sglang_flags.value(flags, GRAPHS_OFF_FLAG) is True else MAX_GRAPH_REQUESTS
    compute_bytes = 512 * MIB + tokens * MIB * 3 // 2 + graph_requests * 2 * MIB
    step_text = f"{tokens} tokens of unchunked prompts" if chunk_tokens == 0 else f"{tokens} tokens of a chunk"
    table_bytes = _ngram_table_bytes(flags, lock_entry.get("config") or {})
    source = f"by SGLang's formula: {step_text}, CUDA graphs of {graph_requests} requests"
    weights_bytes = max(0, sum_weights(lock_entry, PYTORCH_WEIGHT_SUFFIXES) - table_bytes)
    parts = (
        MemoryPart("computation", compute_bytes, source, assumed=True),
        *read_cpu_part("weights", flags, "cpu-offload-gb"),
        *_hicache_parts(flags, int(share * GB10_BYTES) - weights_bytes if weights_bytes else 0),
    )
    return Memory(
        share=share,
        bytes=sum(part.size_bytes for part in parts),
        weights_bytes=weights_bytes,
        weights_source="spark.lock" + (", without the n-gram table, which stays in a file" if table_bytes else ""),
        parts=parts,
        flag=sglang_flags.MEMORY,
        value=share,
        host_bytes=ASSUMED_HOST_BYTES,
        compiles=True,
    )


def _hicache_parts(flags: Mapping[str, Any], kv_cache_bytes: int) -> tuple[MemoryPart, ...]:
    """Return the part of the hierarchical cache on the CPU, which is in the same memory on a GB10.

    kv_cache_bytes: size of the KV cache on a GB10; 0 if unknown.
    """
    if sglang_flags.value(flags, "enable-hierarchical-cache") is not True:
        return ()
    content = "KV cache"
    sized_parts = read_cpu_part(content, flags, "hicache-size", GB)
    if sized_parts or kv_cache_bytes <= 0:
        return sized_parts
    ratio = sglang_flags.value(flags, "hicache-ratio") or DEFAULT_HICACHE_RATIO
    return read_cpu_part(content, {"hicache-ratio": ratio}, "hicache-ratio", kv_cache_bytes)


def _ngram_table_bytes(flags: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    """Return the size of the table of n-gram embeddings if the flags leave it in a file, else 0: at least one byte per element."""
    if (
        sglang_flags.value(flags, "ple-offload-embedding") is not True
        or sglang_flags.value(flags, "ple-offload-backend") != "file"
    ):
        return 0
    rows, width = (count_or_none(model.get(name)) or 0 for name in NGRAM_TABLE_KEYS)
    return rows * width


def chunked_prefill_variants(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the changes to the flags that turn chunked prefill on (the recipe's chunk size or SGLang's default) and off."""
    chunk_tokens = sglang_flags.chunk_size(sglang_flags.normalize(flags)) or DEFAULT_CHUNK_TOKENS
    return {sglang_flags.CHUNK_SIZE: chunk_tokens}, {sglang_flags.CHUNK_SIZE: CHUNKING_OFF_SIZE}

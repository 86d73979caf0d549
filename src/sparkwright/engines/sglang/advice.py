"""SGLang's implementation of engines.advice.Advice."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import (
    EXPECTED_RULE,
    Decision,
    Effective,
    ImpossiblePolicy,
    PrefillExpectation,
    ServerRequest,
    UnknownKind,
)
from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.memory import HOST_SIDE_BYTES, Memory, MemoryPart, sum_weights
from sparkwright.engines.sglang import flags as sglang_flags
from sparkwright.engines.sglang import rules
from sparkwright.trust.bounds import count_or_none
from sparkwright.units import MIB

CHUNKED_PREFILL = sglang_flags.CHUNK_SIZE
RULES = (rules.RULES,)
CHUNKING_OFF = -1
#: its default chunk size on 90 to 160 GB. source 0.5.23
DEFAULT_CHUNK_TOKENS = 8192
#: in its rule for a share: least tokens of a chunk, tokens without chunks, requests of CUDA graphs on 90 to 160 GB. source 0.5.9
MIN_CHUNK_TOKENS, DEFAULT_PREFILL_TOKENS, MAX_GRAPH_REQUESTS = 2048, 16384, 256
GRAPHS_OFF = "disable-cuda-graph"
#: rows and width of a table of n-gram embeddings, as config.json names them
NGRAM_TABLE_KEYS = ("ngram_vocab_size_base", "ple_embed_dim")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
MAX_TEXT_CHARS = 200
_VERSION = re.compile(r"(?<![\d.])v?(\d+\.\d+\.\d+(?:\.?post\d+)?(?:rc\d+)?)(?![\d.])")


def version(text: str | None) -> Version | None:
    """Return the release in a text, as 0.5.23 of "v0.5.23-cu130"; None if it holds none."""
    match = _VERSION.search((text or "")[:MAX_TEXT_CHARS])
    return Version(match[1]) if match else None


def kind(model: Mapping[str, Any]) -> UnknownKind:
    """Return an unknown kind."""
    return UnknownKind(
        "a model whose kind is not known for SGLang", count_or_none(model.get("max_position_embeddings"))
    )


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the longest sequence, and the size of a table of n-gram embeddings, if the config has them."""
    text_config = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    sizes = {
        name: count_or_none((text_config or {}).get(name)) for name in ("max_position_embeddings", *NGRAM_TABLE_KEYS)
    }
    return {name: size for name, size in sizes.items() if size is not None}


def decide(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    wanted: PrefillExpectation,
    impossible: ImpossiblePolicy,
) -> Decision:
    """Return the decision about chunked prefill, which is on by default; a chunk size of -1 turns it off."""
    size = sglang_flags.chunk_size(sglang_flags.normalize(request.flags))
    if wanted == "disabled":
        other_flags = {
            name: given
            for name, given in request.flags.items()
            if sglang_flags.canonical(name) != sglang_flags.CHUNK_SIZE
        }
        return Decision({**other_flags, sglang_flags.CHUNK_SIZE: CHUNKING_OFF}, "disabled")
    if wanted == "enabled" and size == 0:
        sentence = "the recipe expects chunked prefill on, and its flags turn it off."
        way = Way("leave it on", {sglang_flags.CHUNK_SIZE: None})
        finding = Finding("error", sentence, (way,), "the recipe", sglang_flags.CHUNK_SIZE, rule=EXPECTED_RULE)
        return Decision(request.flags, "enabled", "", finding)
    return Decision(request.flags, wanted)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    case = rules.Case(
        replace(request, flags=sglang_flags.normalize(request.flags)),
        str(version) if version else None,
        listed,
        kind(model).max_position_embeddings,
    )
    return rules.RULES.check(case)


def effective(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
    """Return the settings that the flags set; SGLang's own choices are known once it serves."""
    flags = sglang_flags.normalize(request.flags)
    size = sglang_flags.chunk_size(flags)
    return Effective(
        chunked_prefill=None if size is None else size > 0,
        prefix_caching=sglang_flags.value(flags, sglang_flags.RADIX_OFF) is not True,
        budget=size or None,
        max_num_seqs=sglang_flags.parse_integer(sglang_flags.value(flags, sglang_flags.SLOTS)) or 0,
        max_model_len=sglang_flags.context(flags),
        memory_utilization=sglang_flags.memory_share(flags) or None,
    )


def memory(flags: Mapping[str, Any], locked: Mapping[str, Any]) -> Memory:
    """Return the share for weights and KV cache, and the memory for computation on top; unknown if the flags leave the share to
    SGLang.

    The share is of the memory that is free before it loads; all memory is counted here, which is the most. `mem-fraction-static`
    is for weights and KV cache alone; memory for computation is outside of it, whoever chose the share. Its size follows the rule
    with which SGLang chooses a share (source 0.5.9 server_args.py, 0.5.23 arg_groups/memory_hook.py): 512 MiB, 1.5 MiB per token
    computed at once, 2 MiB per request of the largest CUDA graph. Prompts that are not chunked are computed `max-prefill-tokens`
    at once.
    """
    flags = sglang_flags.normalize(flags)
    share = sglang_flags.memory_share(flags)
    if not share:
        return Memory()
    chunk = sglang_flags.chunk_size(flags)
    prefill = (
        sglang_flags.parse_integer(sglang_flags.value(flags, sglang_flags.MAX_PREFILL_TOKENS)) or DEFAULT_PREFILL_TOKENS
    )
    tokens = max(MIN_CHUNK_TOKENS, DEFAULT_CHUNK_TOKENS if chunk is None else chunk or prefill)
    graphs = 0 if sglang_flags.value(flags, GRAPHS_OFF) is True else MAX_GRAPH_REQUESTS
    compute_bytes = 512 * MIB + tokens * MIB * 3 // 2 + graphs * 2 * MIB
    token_source = f"{tokens} tokens of prompts in one piece" if chunk == 0 else f"{tokens} tokens of a chunk"
    table_bytes = _ngram_table_bytes(flags, locked.get("config") or {})
    source = f"by SGLang's own rule: {token_source}, CUDA graphs of {graphs} requests"
    return Memory(
        share=share,
        bytes=compute_bytes,
        weights_bytes=max(0, sum_weights(locked, WEIGHT_SUFFIXES) - table_bytes),
        weights_source="spark.lock" + (", less its n-gram table, which stays in a file" if table_bytes else ""),
        parts=(MemoryPart("computation", compute_bytes, source, assumed=True),),
        flag=sglang_flags.MEMORY,
        value=share,
        host_bytes=HOST_SIDE_BYTES,
        compiles=True,
    )


def _ngram_table_bytes(flags: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    """Return the bytes of the model's table of n-gram embeddings if the flags leave it in a file, at the minimum of one byte per
    number."""
    if (
        sglang_flags.value(flags, "ple-offload-embedding") is not True
        or sglang_flags.value(flags, "ple-offload-backend") != "file"
    ):
        return 0
    rows, width = (count_or_none(model.get(name)) or 0 for name in NGRAM_TABLE_KEYS)
    return rows * width


def chunked_prefill_arms(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the recipe's chunk size, or the default one, for on, and -1 for off."""
    return {sglang_flags.CHUNK_SIZE: sglang_flags.chunk_size(sglang_flags.normalize(flags)) or DEFAULT_CHUNK_TOKENS}, {
        sglang_flags.CHUNK_SIZE: CHUNKING_OFF
    }

"""SGLang's implementation of engines.advice.Advice."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import (
    EXPECTED,
    Decision,
    Effective,
    ServerRequest,
    UnknownKind,
    Wanted,
    WhenImpossible,
)
from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.memory import HOST_SIDE_BYTES, Memory, Part, weights
from sparkwright.engines.sglang import flags as own
from sparkwright.engines.sglang import rules
from sparkwright.trust.bounds import count_of
from sparkwright.units import MIB

CHUNKED_PREFILL = own.CHUNK
RULES = (rules.RULES,)
OFF = -1
#: its default chunk size on 90 to 160 GB. source 0.5.23
USUAL_CHUNK = 8192
#: in its rule for a share: least tokens of a chunk, tokens without chunks, requests of CUDA graphs on 90 to 160 GB. source 0.5.9
LEAST_CHUNK, LONGEST_PROMPT, GRAPH_REQUESTS = 2048, 16384, 256
GRAPHS_OFF = "disable-cuda-graph"
#: rows and width of a table of n-gram embeddings, as config.json names them
TABLE = ("ngram_vocab_size_base", "ple_embed_dim")
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
LONGEST_TEXT = 200
_VERSION = re.compile(r"(?<![\d.])v?(\d+\.\d+\.\d+(?:\.?post\d+)?(?:rc\d+)?)(?![\d.])")


def version(text: str | None) -> Version | None:
    """Return the release in a text, as 0.5.23 of "v0.5.23-cu130"; None if it holds none."""
    found = _VERSION.search((text or "")[:LONGEST_TEXT])
    return Version(found[1]) if found else None


def kind(model: Mapping[str, Any]) -> UnknownKind:
    """Return an unknown kind."""
    return UnknownKind("a model whose kind is not known for SGLang", count_of(model.get("max_position_embeddings")))


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the longest sequence, and the size of a table of n-gram embeddings, if the config has them."""
    held = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    sizes = {name: count_of((held or {}).get(name)) for name in ("max_position_embeddings", *TABLE)}
    return {name: size for name, size in sizes.items() if size is not None}


def decide(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    wanted: Wanted,
    impossible: WhenImpossible,
) -> Decision:
    """Return the decision about chunked prefill, which is on by default; a chunk size of -1 turns it off."""
    size = own.chunk(own.named(request.flags))
    if wanted == "disabled":
        others = {name: given for name, given in request.flags.items() if own.canonical(name) != own.CHUNK}
        return Decision({**others, own.CHUNK: OFF}, "disabled")
    if wanted == "enabled" and size == 0:
        sentence = "the recipe expects chunked prefill on, and its flags turn it off."
        way = Way("leave it on", {own.CHUNK: None})
        finding = Finding("error", sentence, (way,), "the recipe", own.CHUNK, rule=EXPECTED)
        return Decision(request.flags, "enabled", "", finding)
    return Decision(request.flags, wanted)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    case = rules.Case(
        replace(request, flags=own.named(request.flags)),
        str(version) if version else None,
        listed,
        kind(model).max_position_embeddings,
    )
    return rules.RULES.check(case)


def effective(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
    """Return the settings that the flags set; SGLang's own choices are known once it serves."""
    flags = own.named(request.flags)
    size = own.chunk(flags)
    return Effective(
        chunked_prefill=None if size is None else size > 0,
        prefix_caching=own.value(flags, own.RADIX_OFF) is not True,
        budget=size or None,
        max_num_seqs=own.number(own.value(flags, own.SLOTS)) or 0,
        max_model_len=own.context(flags),
        memory_utilization=own.share(flags) or None,
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
    flags = own.named(flags)
    share = own.share(flags)
    if not share:
        return Memory()
    chunk = own.chunk(flags)
    prefill = own.number(own.value(flags, own.PREFILL)) or LONGEST_PROMPT
    tokens = max(LEAST_CHUNK, USUAL_CHUNK if chunk is None else chunk or prefill)
    graphs = 0 if own.value(flags, GRAPHS_OFF) is True else GRAPH_REQUESTS
    computes = 512 * MIB + tokens * MIB * 3 // 2 + graphs * 2 * MIB
    what = f"{tokens} tokens of prompts in one piece" if chunk == 0 else f"{tokens} tokens of a chunk"
    apart = _in_a_file(flags, locked.get("config") or {})
    source = f"by SGLang's own rule: {what}, CUDA graphs of {graphs} requests"
    return Memory(
        share=share,
        bytes=computes,
        weights_bytes=max(0, weights(locked, WEIGHTS) - apart),
        weights_source="spark.lock" + (", less its n-gram table, which stays in a file" if apart else ""),
        parts=(Part("computation", computes, source, assumed=True),),
        flag=own.MEMORY,
        value=share,
        host_bytes=HOST_SIDE_BYTES,
        compiles=True,
    )


def _in_a_file(flags: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    """Return the bytes of the model's table of n-gram embeddings if the flags leave it in a file, at the minimum of one byte per
    number."""
    if own.value(flags, "ple-offload-embedding") is not True or own.value(flags, "ple-offload-backend") != "file":
        return 0
    rows, width = (count_of(model.get(name)) or 0 for name in TABLE)
    return rows * width


def chunked_prefill_arms(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the recipe's chunk size, or the default one, for on, and -1 for off."""
    return {own.CHUNK: own.chunk(own.named(flags)) or USUAL_CHUNK}, {own.CHUNK: OFF}

"""llama.cpp's implementation of engines.advice.Advice, and the memory that llama-server takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import (
    Decision,
    Effective,
    ImpossiblePolicy,
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
from sparkwright.engines.llama_cpp.gguf import ARCHITECTURE_KEY, Header
from sparkwright.engines.memory import Memory, MemoryPart
from sparkwright.trust.bounds import count_or_none
from sparkwright.units import GIB, MIB

#: there is no switch for it
CHUNKED_PREFILL = ""
RULES = (rules.RULES,)
NO_SWITCH_REASON = "it always cuts prompts into pieces of batch-size tokens"
DEFAULT_BATCH_TOKENS = 2048
_BUILD = re.compile(r"\bb?(\d{4,6})\b")


def version(text: str | None) -> Version | None:
    """Return the build in a text, as 11549 of "b11549-7e4c0a9"; None if it holds none."""
    match = _BUILD.search(text or "")
    return Version(match[1]) if match else None


def kind(model: Mapping[str, Any]) -> UnknownKind:
    """Return an unknown kind: it is in the header of the GGUF file, which is not read before it is served."""
    return UnknownKind("a GGUF model")


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return nothing: llama.cpp does not read a config.json beside GGUF files."""
    return {}


def decide(
    request: ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    wanted: PrefillExpectation,
    impossible: ImpossiblePolicy,
) -> Decision:
    """Return the decision about chunked prefill; llama.cpp has no switch for it."""
    return decide_without_switch(request, "llama.cpp", wanted, impossible, NO_SWITCH_REASON)


def check(
    request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
) -> list[Finding]:
    """Return all findings, errors first."""
    case = rules.Case(
        replace(request, flags=llama_flags.normalize(request.flags)), f"b{version.major}" if version else None, listed
    )
    return rules.RULES.check(case)


def effective(request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
    """Return the settings that follow from the flags."""
    flags = llama_flags.normalize(request.flags)
    return Effective(
        chunked_prefill=True,
        prefix_caching=llama_flags.value(flags, "cache-prompt") is not False,
        budget=llama_flags.parse_positive_integer(llama_flags.value(flags, llama_flags.BUDGET)) or DEFAULT_BATCH_TOKENS,
        max_num_seqs=llama_flags.slots(flags),
        max_model_len=llama_flags.context(flags),
    )


def memory(flags: Mapping[str, Any], locked: Mapping[str, Any]) -> Memory:
    """Return the memory of the files, of the KV cache by the header that the lock keeps, of kept prompts and of compute buffers,
    in bytes.

    locked: its files are all that the recipe downloads. Without a header the KV cache is left out.
    """
    rows, flags = locked.get("files") or (), llama_flags.normalize(flags)
    file_sizes = {row["path"]: row["size_bytes"] for row in rows if str(row["path"]).lower().endswith(SUFFIX)}
    if not file_sizes:
        return Memory()
    header = _locked_header(locked)
    needs = estimate_memory(file_sizes, flags, header)
    tokens = cache_tokens(header, flags) if header and needs.kv else None
    cache = f"{tokens} tokens, by the model's header" if tokens else "the model's header does not tell its size"
    return Memory(
        bytes=needs.total,
        weights_bytes=needs.weights,
        parts=(
            MemoryPart("weights", needs.weights, "spark.lock"),
            MemoryPart("KV cache", needs.kv, cache, assumed=not tokens),
            MemoryPart("earlier prompts", needs.prompts, llama_flags.PROMPT_CACHE, later=True),
            MemoryPart(
                "host's side", needs.overhead, "compute buffers, CUDA's context, the program", assumed=True, host=True
            ),
        ),
        flag=llama_flags.CONTEXT,
        value=llama_flags.parse_positive_integer(llama_flags.value(flags, llama_flags.CONTEXT)) or 0,
        per_token_bytes=needs.kv / tokens if tokens else 0,
    )


def _locked_header(locked: Mapping[str, Any]) -> Header | None:
    """Return the part of the model's header that the lock keeps; None if it keeps none."""
    values = locked.get("config")
    return Header(0, 0, dict(values)) if isinstance(values, Mapping) and values.get(ARCHITECTURE_KEY) else None


def chunked_prefill_arms(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return None: there is no such switch."""
    return None


# Memory that llama-server takes: its files, its KV cache by the model's header, and its compute buffers.
#
# Sources: src/llama-kv-cache.cpp and the "KV buffer size" lines of b11549 (tests/real_llama/test_memory.py), which
# agree to the byte for a model with attention in all layers. A model with recurrent layers, sliding windows or MLA
# takes less: the figures here are an upper bound.

#: (bytes, values) of a block, by type (ggml-common.h)
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
#: compute buffers, CUDA's context and the program: a guess on the safe side, 0.3 to 1.2 GiB are usual at a ubatch of 512
OVERHEAD_BYTES = 3 * GIB // 2
#: default limit of the prompts kept beside the cache (--cache-ram, MiB)
DEFAULT_PROMPT_CACHE_MIB = 8192
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The memory of a server, in bytes."""

    weights: int
    #: 0 if the header does not tell the size
    kv: int
    #: limit for kept earlier prompts, which grow as the server runs
    prompts: int
    overhead: int = OVERHEAD_BYTES

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.prompts + self.overhead


def estimate_memory(sizes: Mapping[str, int], flags: Mapping[str, Any], header: Header | None) -> MemoryNeeds:
    """Return the memory of a server with these flags.

    Args:
        sizes: bytes of each of its files, mmproj and draft model included.
        flags: of the recipe, under their own names.
        header: of its model; None while it is not known.
    """
    weights = sum(sizes.values())
    kv = kv_bytes(header, flags) if header is not None else None
    prompt_cache_mib = parse_integer(llama_flags.value(flags, llama_flags.PROMPT_CACHE))
    prompts = DEFAULT_PROMPT_CACHE_MIB if prompt_cache_mib is None or prompt_cache_mib < 0 else prompt_cache_mib
    return MemoryNeeds(weights, kv or 0, prompts * MIB)


def cache_tokens(header: Header, flags: Mapping[str, Any]) -> int | None:
    """Return the number of tokens in the whole cache, over all slots; None if neither flags nor header tell.

    A context beyond the trained one is allocated in full, though a slot serves no more than the trained one.
    """
    slot = llama_flags.context(flags) or llama_flags.round_up_context(
        count_or_none(header.architecture_value("context_length")) or 0
    )
    return slot * (1 if llama_flags.has_unified_cache(flags) else llama_flags.slots(flags)) or None


def kv_bytes(header: Header, flags: Mapping[str, Any]) -> int | None:
    """Return the size of the KV cache in bytes; None if the header does not tell its sizes."""
    tokens, layers = cache_tokens(header, flags), count_or_none(header.architecture_value("block_count"))
    if tokens is None or layers is None or layers > MAX_LAYERS:
        return None
    heads = _total_kv_heads(header, layers)
    width = _head_widths(header)
    if heads is None or width is None:
        return None
    key, value = width
    rows = ((key, "cache-type-k"), (value, "cache-type-v"))
    return sum(_quantized_bytes(tokens * heads * size, flags.get(name)) for size, name in rows)


def _quantized_bytes(values: int, kind: Any) -> int:
    size, block = CACHE_TYPES.get(str(kind or DEFAULT_CACHE_TYPE), CACHE_TYPES["f32"])
    return -(-values // block) * size


def _total_kv_heads(header: Header, layers: int) -> int | None:
    """Return the KV heads of all layers together; the header has one number for all layers, or one each."""
    head_counts = header.architecture_value("attention.head_count_kv")
    head_counts = header.architecture_value("attention.head_count") if head_counts is None else head_counts
    if isinstance(head_counts, list):
        counts = [count_or_none(item) for item in head_counts[:layers]]
        return sum(index for index in counts if index is not None) if None not in counts else None
    count = count_or_none(head_counts)
    return None if count is None else count * layers


def _head_widths(header: Header) -> tuple[int, int] | None:
    """Return the numbers per key and per value of a head."""
    lengths = [count_or_none(header.architecture_value(f"attention.{part}_length")) for part in ("key", "value")]
    embedding, heads = (
        count_or_none(header.architecture_value("embedding_length")),
        header.architecture_value("attention.head_count"),
    )
    heads = count_or_none(
        max(heads, default=0) if isinstance(heads, list) and all(type(head) is int for head in heads) else heads
    )
    default_length = embedding // heads if embedding and heads else None
    key, value = (index if index is not None else default_length for index in lengths)
    return None if key is None or value is None else (key, value)

"""Flags of different engines with the same meaning, to tell a flag of another engine from a typing error.

Sources: the help of vLLM 0.32.0 and of llama-server b11549; SGLang 0.5.23's server_args.py; TensorRT-LLM's trtllm-serve. A
concept without a flag in an engine has an empty tuple there; a YAML key is written with dots.
"""

from __future__ import annotations

from collections.abc import Mapping

#: TensorRT-LLM, which is served as an OpenAI-compatible server
TRTLLM = "trtllm"
TITLES: Mapping[str, str] = {"vllm": "vLLM", "llama_cpp": "llama.cpp", "sglang": "SGLang", TRTLLM: "TensorRT-LLM"}

#: engines' flags by concept, the usual one first
CONCEPTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "the longest context": {
        "vllm": ("max-model-len",),
        "sglang": ("context-length",),
        "llama_cpp": ("ctx-size",),
        TRTLLM: ("max_seq_len",),
    },
    "requests at a time": {
        "vllm": ("max-num-seqs",),
        "sglang": ("max-running-requests",),
        "llama_cpp": ("parallel",),
        TRTLLM: ("max_batch_size",),
    },
    "tokens of one step": {
        "vllm": ("max-num-batched-tokens",),
        "sglang": ("max-prefill-tokens",),
        "llama_cpp": ("batch-size",),
        TRTLLM: ("max_num_tokens",),
    },
    "the share of memory": {
        "vllm": ("gpu-memory-utilization",),
        "sglang": ("mem-fraction-static",),
        "llama_cpp": (),
        TRTLLM: ("free_gpu_memory_fraction",),
    },
    "the type of the KV cache": {
        "vllm": ("kv-cache-dtype",),
        "sglang": ("kv-cache-dtype",),
        "llama_cpp": ("cache-type-k", "cache-type-v"),
        TRTLLM: ("kv_cache_config.dtype",),
    },
    "chunked prefill": {
        "vllm": ("enable-chunked-prefill",),
        "sglang": ("chunked-prefill-size",),
        "llama_cpp": (),
        TRTLLM: ("enable_chunked_prefill",),
    },
    "the prefix cache": {
        "vllm": ("enable-prefix-caching",),
        "sglang": ("disable-radix-cache",),
        "llama_cpp": ("cache-prompt",),
        TRTLLM: ("kv_cache_config.enable_block_reuse",),
    },
    "the served name": {
        "vllm": ("served-model-name",),
        "sglang": ("served-model-name",),
        "llama_cpp": ("alias",),
        TRTLLM: ("served_model_name",),
    },
    "the port": {"vllm": ("port",), "sglang": ("port",), "llama_cpp": ("port",), TRTLLM: ("port",)},
    "the address": {"vllm": ("host",), "sglang": ("host",), "llama_cpp": ("host",), TRTLLM: ("host",)},
    "the key": {
        "vllm": ("api-key",),
        "sglang": ("api-key", "admin-api-key"),
        "llama_cpp": ("api-key", "api-key-file"),
        TRTLLM: (),
    },
    "the model": {
        "vllm": ("model",),
        "sglang": ("model-path",),
        "llama_cpp": ("model",),
        TRTLLM: (),
    },
    "tensor parallelism": {
        "vllm": ("tensor-parallel-size",),
        "sglang": ("tp-size",),
        "llama_cpp": (),
        TRTLLM: ("tp_size",),
    },
    "the parser of tool calls": {
        "vllm": ("tool-call-parser",),
        "sglang": ("tool-call-parser",),
        "llama_cpp": (),
        TRTLLM: ("tool_parser",),
    },
    "the parser of reasoning": {
        "vllm": ("reasoning-parser",),
        "sglang": ("reasoning-parser",),
        "llama_cpp": ("reasoning-format",),
        TRTLLM: ("reasoning_parser",),
    },
    "the template's defaults": {
        "vllm": ("default-chat-template-kwargs",),
        "sglang": (),
        "llama_cpp": ("chat-template-kwargs",),
        TRTLLM: (),
    },
}
#: flags with another meaning of values than their counterparts
NOT_THE_SAME = frozenset(
    ("chunked-prefill-size", "disable-radix-cache", "reasoning-format", "cache-type-k", "ctx-size")
)


def of(name: str) -> str:
    """Return the concept of a flag of any engine; empty for none."""
    wanted = _plain(name)
    return next(
        (concept for concept, row in CONCEPTS.items() if any(wanted in map(_plain, pair) for pair in row.values())), ""
    )


def owners(name: str) -> list[str]:
    """Return the engines with a flag of this name, in the order of TITLES."""
    row = CONCEPTS.get(of(name), {})
    return [engine for engine in TITLES if _plain(name) in map(_plain, row.get(engine, ()))]


def here(engine: str, name: str) -> str:
    """Return this engine's name for a flag of another engine, if the same value means the same; empty for none."""
    own = CONCEPTS.get(of(name), {}).get(engine, ())
    return own[0] if len(own) == 1 and not {own[0], name} & NOT_THE_SAME else ""


def counterpart(engine: str, name: str) -> str:
    """Return this engine's flags for the concept of another engine's flag, as "cache-type-k and cache-type-v"; empty for none."""
    return " and ".join(CONCEPTS.get(of(name), {}).get(engine, ()))


def elsewhere(engine: str, name: str) -> str:
    """Return the owner of a flag and this engine's counterpart, as half a sentence; empty for a flag of this engine or of none.

    Example: "max-model-len is vLLM's; llama.cpp has ctx-size for the longest context".
    """
    theirs, concept = owners(name), of(name)
    if not theirs or engine in theirs:
        return ""
    own = counterpart(engine, name)
    whose = " and ".join(f"{TITLES[item]}'s" for item in theirs)
    has = f"has {own} for {concept}" if own else f"has no flag for {concept}"
    return f"{name} is {whose}; {TITLES.get(engine, engine)} {has}"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")

"""Lines of vLLM's start-up log, with the versions and sources they were read in.

real: a start-up log of vLLM 0.32.0 in tests/data. source: vLLM's source of the versions named. Prefixes such as
"(EngineCore pid=16) INFO 11-21 00:07:43 [core.py:133]" change with every release and are never matched.
"""

from __future__ import annotations

import re

#: where a start begins: `docker logs` strings restarts together. real; 0.9 to 0.33.
START = re.compile(r"non-default args: \{")

#: the engine's own settings. real; the label was chunked_prefill_enabled until 0.11.0 (source).
CONFIG_DUMP = re.compile(r"Initializing a V\d LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)")

#: fields of the dump: name -> the labels it had
DUMP_FIELDS: dict[str, tuple[str, ...]] = {
    "chunked_prefill": ("enable_chunked_prefill", "chunked_prefill_enabled"),
    "prefix_caching": ("enable_prefix_caching",),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "quantization": ("quantization",),
    "max_model_len": ("max_seq_len",),
}

#: printed after the dump, and stronger than it. source 0.11.0, 0.33.0.
CHUNKED_PREFILL_OFF_LATER = re.compile(
    r"Disabling chunked prefill(?: for model without KVCache|: model has non-causal)"
)

#: the same of prefix caching. source 0.32.0.
PREFIX_CACHING_OFF_LATER = re.compile(r"Disabling prefix caching: model has non-causal")

#: only when it is on, and not in every version: in the source of 0.17 to 0.33, in no real log of 0.32.0. Silence is no proof.
CHUNKED_PREFILL_ON = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")

#: a value in the first group. real unless said otherwise.
VALUES: dict[str, re.Pattern[str]] = {
    "version": re.compile(r"(?:version |vLLM API server version |vLLM server version )v?(\d+\.\d+\S*?),?(?:\s|$)"),
    "architecture": re.compile(r"Resolved architecture: (\S+)"),
    "mamba_cache_mode": re.compile(r"Mamba cache mode is set to '(\w+)'"),
    "block_size": re.compile(r"Setting attention block size to (\d+) tokens"),
    "kv_cache_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "max_concurrency": re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    "attention_backend": re.compile(r"Using (\w+) (?:attention )?backend"),
    "weights_s": re.compile(r"Loading weights took ([\d.]+) s"),
    "init_s": re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
}

#: stages of a start, in their order: what the line that begins each of them looks like
STAGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("arguments", START),
    ("engine", CONFIG_DUMP),
    ("weights", re.compile(r"Starting to load model |Loading safetensors checkpoint shards")),
    ("compile", re.compile(r"Loading weights took|torch\.compile|Dynamo bytecode transform|Capturing CUDA graphs")),
    ("kv cache", re.compile(r"KV cache size: [\d,]+ tokens")),
    ("server", re.compile(r"Starting vLLM (?:API )?server ")),
    ("ready", re.compile(r"Application startup complete\.")),
)
READY = STAGES[-1][1]

#: it was asked to stop: what it says from here on, errors too, is part of stopping. real.
STOPPING = re.compile(r"\[shutdown\] API server: shutdown triggered")

#: how many shards of how many are loaded. real.
SHARDS = re.compile(r"Loading safetensors checkpoint shards:\s+\d+% Completed \| (\d+)/(\d+)")

#: warnings a person should see
WARNINGS: tuple[re.Pattern[str], ...] = (
    re.compile(r"does not officially support disabling chunked prefill"),
    re.compile(r"Disabling calculate_kv_scales for hybrid model"),
    re.compile(r"Triton kernel JIT compilation during inference"),
    re.compile(r"falling back to 'align' mode"),
)

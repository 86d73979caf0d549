"""The highest possible decode rate of one stream, limited by memory bandwidth.

Without speculation, the rate is at most bandwidth / bytes per token. The bytes are a lower bound (no state, no KV cache, no
activations), so the ceiling is never too low. In a cluster, all hosts read their parts at the same time and wait for each other
twice per layer. Source: safetensors' header (8 bytes of length, then JSON of name -> dtype, shape, data_offsets); a GB10's
LPDDR5X has 273 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.engines.model.config_parts import ConfigPart, text_part
from sparkwright.engines.parallel import Split

#: a Spark's GPU, by its name in nvidia-smi
GB10 = "NVIDIA GB10"
#: bytes/s, by the GPU's name in nvidia-smi
BANDWIDTH_BYTES_PER_S = {GB10: 273e9}

#: seconds for one all-reduce over two hosts, including launch and waiting. Fitted to kubis.ai's gpt-oss-120b with 36 layers:
#: 17.4 ms per token on one GB10, 14.5 ms with tensor parallelism on two. NCCL alone takes 30 to 65 us. Used only for advice
ALL_REDUCE_S = 80e-6
ALL_REDUCES_PER_LAYER = 2
#: source of `split_rate`
SPLIT_SOURCE = "a rule of thumb fitted to one report (gpt-oss-120b on two Sparks, kubis.ai), not a measurement"

#: substrings of the names of weights that are not used for text tokens
IDLE_NAME_SUBSTRINGS = ("visual", "vision", "audio", "mtp", "speculat", "draft", "eagle")
EMBEDDING_NAME = "embed_tokens"
EXPERT_NAME_SUBSTRINGS = (".experts.", "block_sparse_moe.experts")
EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_EXPERT_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "experts_per_token")


def bytes_per_token(config: Mapping[str, Any], tensors: Iterable[tuple[str, int]]) -> int | None:
    """Return a lower bound on the number of bytes that are read for each token; None without tensors.

    tensors: (name, bytes) of the whole checkpoint.
    """
    language_part = text_part(config)
    active_share = _active_expert_share(language_part)
    has_tied_embeddings = bool(language_part.keys.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    total = 0.0
    for name, size in tensors:
        if any(part in name.lower() for part in IDLE_NAME_SUBSTRINGS) or (
            EMBEDDING_NAME in name and not has_tied_embeddings
        ):
            continue
        total += size * (active_share if any(part in name for part in EXPERT_NAME_SUBSTRINGS) else 1.0)
    return int(total) or None


def ceiling(gpu: str | None, token_bytes: int | None) -> float | None:
    """Return the highest possible rate of one stream in tokens/s; None for an unknown GPU or model."""
    bandwidth = BANDWIDTH_BYTES_PER_S.get(gpu or "")
    return bandwidth / token_bytes if bandwidth and token_bytes else None


def split_rate(single_host_rate: float | None, split: Split, layers: int | None) -> float | None:
    """Return the highest rate of one stream on a cluster, in tokens/s; None if the rate of one host or the
    number of layers is unknown.

    t(n) = t(1) / n + 2 * layers * ALL_REDUCE_S for n hosts of tensor parallelism. Pipeline parallelism does not make a stream
    faster, since each token passes through all hosts in turn.

    single_host_rate: rate of one host in tokens/s, measured or the ceiling.
    """
    if not single_host_rate or single_host_rate <= 0:
        return None
    if split.tensor == 1:
        return single_host_rate
    waiting_s = ALL_REDUCES_PER_LAYER * layers * ALL_REDUCE_S if layers else None
    return None if waiting_s is None else 1 / (1 / (single_host_rate * split.tensor) + waiting_s)


def _active_expert_share(language_part: ConfigPart) -> float:
    """Return the share of routed experts that are active for a token; 0 if unknown."""
    expert_count, active_count = (
        language_part.get_number(*EXPERT_COUNT_KEYS),
        language_part.get_number(*ACTIVE_EXPERT_KEYS),
    )
    return active_count / expert_count if expert_count and active_count else 0.0

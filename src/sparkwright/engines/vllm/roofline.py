"""How fast one stream can be at all: every weight that a token needs crosses the memory bus once.

Without speculation no server decodes faster than bandwidth / bytes a token. What is counted here is a lower bound of those bytes
(no state, no KV cache, no activations), so the ceiling is never too low. Source: facts of safetensors' header (8 bytes of length,
then JSON of name -> dtype, shape, data_offsets); a GB10's LPDDR5X has 273 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.engines.vllm.architecture.config_parts import Part, text

#: bytes a second, by what nvidia-smi calls the GPU
BANDWIDTH = {"NVIDIA GB10": 273e9}

#: parts of a checkpoint that a text token does not pass through
IDLE = ("visual", "vision", "audio", "mtp", "speculat", "draft", "eagle")
EMBEDDING = "embed_tokens"
EXPERTS = (".experts.", "block_sparse_moe.experts")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "experts_per_token")


def bytes_per_token(config: Mapping[str, Any], tensors: Iterable[tuple[str, int]]) -> int | None:
    """The least a token reads. config: the model's config.json. tensors: (name, bytes) of the whole checkpoint; None of nothing."""
    inner = text(config)
    share = _share(inner)
    tied = bool(inner.keys.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    total = 0.0
    for name, size in tensors:
        if any(part in name.lower() for part in IDLE) or (EMBEDDING in name and not tied):
            continue
        total += size * (share if any(part in name for part in EXPERTS) else 1.0)
    return int(total) or None


def ceiling(gpu: str | None, per_token: int | None) -> float | None:
    """Tokens a second of one stream that no server on this GPU exceeds; None for a GPU or model that is not known."""
    bandwidth = BANDWIDTH.get(gpu or "")
    return bandwidth / per_token if bandwidth and per_token else None


def _share(inner: Part) -> float:
    """Of the routed experts, those that one token passes through; none where the config does not say how many."""
    count, active = inner.number(*EXPERT_COUNTS), inner.number(*EXPERTS_A_TOKEN)
    return active / count if count and active else 0.0

"""The highest possible rate of one stream: every weight that a token needs crosses the memory bus once.

Without speculation no server decodes faster than bandwidth / bytes per token. The count here is a lower bound of those bytes (no
state, no KV cache, no activations), so the ceiling is never too low. With several hosts each reads its part at the same time, and
waits for the others twice per layer. Source: safetensors' header (8 bytes of length, then JSON of name -> dtype, shape,
data_offsets); a GB10's LPDDR5X has 273 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.engines.model.config_parts import ConfigPart, text_part
from sparkwright.engines.parallel import Split

#: bytes/s, by nvidia-smi's name of the GPU
BANDWIDTH = {"NVIDIA GB10": 273e9}

#: seconds per token for one all-reduce over two hosts, launch and waiting included: fitted to kubis.ai's gpt-oss-120b of 36
#: layers on two GB10, 17.4 ms per token on one and 14.5 ms with tensor parallelism; NCCL alone takes 30 to 65 us. Advice, never a
#: gate
ALL_REDUCE_S = 80e-6
ALL_REDUCES_PER_LAYER = 2
#: source of the rule below
SPLIT_SOURCE = "a rule of thumb fitted to one report (gpt-oss-120b on two Sparks, kubis.ai), not a measurement"

#: parts of a checkpoint that a text token does not pass through
IDLE_PARTS = ("visual", "vision", "audio", "mtp", "speculat", "draft", "eagle")
EMBEDDING_NAME = "embed_tokens"
EXPERT_NAMES = (".experts.", "block_sparse_moe.experts")
EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_EXPERT_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "experts_per_token")


def bytes_per_token(config: Mapping[str, Any], tensors: Iterable[tuple[str, int]]) -> int | None:
    """Return the least number of bytes that a token reads; None without tensors.

    Args:
        config: the model's config.json.
        tensors: (name, bytes) of the whole checkpoint.
    """
    inner = text_part(config)
    share = _active_expert_share(inner)
    tied = bool(inner.keys.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    total = 0.0
    for name, size in tensors:
        if any(part in name.lower() for part in IDLE_PARTS) or (EMBEDDING_NAME in name and not tied):
            continue
        total += size * (share if any(part in name for part in EXPERT_NAMES) else 1.0)
    return int(total) or None


def ceiling(gpu: str | None, per_token: int | None) -> float | None:
    """Return the rate of one stream that no server on this GPU exceeds, tokens/s; None for an unknown GPU or model."""
    bandwidth = BANDWIDTH.get(gpu or "")
    return bandwidth / per_token if bandwidth and per_token else None


def split_rate(alone: float | None, split: Split, layers: int | None) -> float | None:
    """Return the highest rate of one stream over several hosts, tokens/s; None if `alone` or the layers are not known.

    t(n) = t(1) / n + 2 * layers * ALL_REDUCE_S for n hosts of tensor parallelism. Pipeline parallelism passes a token through all
    hosts in turn, which makes it no faster.

    alone: rate of one host, tokens/s, measured or the ceiling.
    """
    if not alone or alone <= 0:
        return None
    if split.tensor == 1:
        return alone
    waiting = ALL_REDUCES_PER_LAYER * layers * ALL_REDUCE_S if layers else None
    return None if waiting is None else 1 / (1 / (alone * split.tensor) + waiting)


def _active_expert_share(inner: ConfigPart) -> float:
    """Return the share of the routed experts that one token passes through; 0 if the config does not tell how many."""
    count, active = inner.number(*EXPERT_COUNT_KEYS), inner.number(*ACTIVE_EXPERT_KEYS)
    return active / count if count and active else 0.0

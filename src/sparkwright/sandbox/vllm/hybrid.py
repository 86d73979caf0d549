"""Cache properties that follow from a model's config.json: recurrent layers and the size of a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.trust.bounds import count_of

_LAYERS = ("linear_attention", "mamba", "mamba2", "conv", "short_conv", "recurrent", "hybrid", "hybrid_sliding")
RECURRENT_LAYERS = frozenset((*_LAYERS, "kda"))
RECURRENT_KEYS = ("linear_conv_kernel_dim", "mamba_d_state", "ssm_state_size", "conv_L_cache", "linear_attn_config")

#: classes of which every state can be cached (mamba cache mode "all", 0.15 to 0.27)
ALL_MODE = ("Bamba", "FalconH1", "FalconMamba", "GraniteMoeHybrid", "Jamba", "Mamba", "NemotronH", "Zamba2")
ATTENTION_FREE = ("MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM")
DENSE_BLOCK = 16
MOST = 2**24  # upper bound of heads and their widths
KERNEL_ALIGNMENT = 16  # tokens
GENERIC_BLOCK = 528  # for a hybrid whose config does not give the size of its state


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a config."""
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else config


def is_hybrid(config: Mapping[str, Any]) -> bool:
    """Return True if some of the model's layers are recurrent."""
    text = text_part(config)
    layers = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(layers, list) and layers:
        return not RECURRENT_LAYERS.isdisjoint(layer for layer in layers if isinstance(layer, str))
    return any(text.get(key) for key in RECURRENT_KEYS)


def is_attention_free(architecture: str) -> bool:
    """Return True if the model has no attention layers. Its prefix caching is off by default."""
    return architecture in ATTENTION_FREE


def takes_all_mode(architecture: str) -> bool:
    """Return True if prefix caching stores every state of this architecture."""
    return architecture.startswith(ALL_MODE)


def block_tokens(config: Mapping[str, Any], kv_cache_dtype: str) -> int:
    """Return the tokens of a block.

    For a hybrid model they make an attention page at least as large as the state of a recurrent layer.
    """
    if not is_hybrid(config):
        return DENSE_BLOCK
    state, token = state_bytes(text_part(config)), token_bytes(text_part(config), kv_cache_dtype)
    if not state or not token:
        return GENERIC_BLOCK
    return KERNEL_ALIGNMENT * -(-state // (KERNEL_ALIGNMENT * token))


def state_bytes(text: Mapping[str, Any]) -> int:
    """Return the size of one gated delta net layer's convolution and state, or 0 if the config does not say."""
    names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
    key_heads, key_dim, value_heads, value_dim = (_size(text, name) for name in names)
    if not (key_heads and key_dim and value_heads and value_dim):
        return 0
    kernel = _size(text, "linear_conv_kernel_dim") or 4
    convolution = (kernel - 1) * (2 * key_heads * key_dim + value_heads * value_dim) * 2
    return convolution + value_heads * value_dim * key_dim * (4 if text.get("mamba_ssm_dtype") == "float32" else 2)


def token_bytes(text: Mapping[str, Any], kv_cache_dtype: str) -> int:
    """Return the size of one token's key and value in one attention layer, bytes."""
    width = 1 if kv_cache_dtype.startswith("fp8") else 2
    return 2 * _size(text, "num_key_value_heads") * _size(text, "head_dim") * width


def padding_percent(config: Mapping[str, Any], kv_cache_dtype: str) -> float:
    """Return by how many percent the page of a state is larger than the state."""
    text = text_part(config)
    state, token = state_bytes(text), token_bytes(text, kv_cache_dtype)
    return 100 * (block_tokens(config, kv_cache_dtype) * token / state - 1) if state and token else 0.0


def _size(text: Mapping[str, Any], name: str) -> int:
    """Return a size of the config, or 0 if it is not a valid one."""
    return count_of(text.get(name), MOST) or 0

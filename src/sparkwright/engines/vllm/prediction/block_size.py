"""The block size of a hybrid's KV cache in tokens: one block must be as large as one recurrent layer's whole state.

A prediction for one GPU; the engine's log line "Setting attention block size to N tokens" is the authority. Source: vLLM 0.32.0
(the hybrid alignment of its platform interface, mamba_utils, and the meaning of "auto" in models/config). Checked against logs:
Qwen3-Next (0.13), Qwen3.5, Nemotron 3 Nano (0.16 to 0.19), Granite 4.0 H (0.19) on CUDA, tiny Qwen3-Next and Jamba on a CPU
(0.32.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.model.config_parts import Part, text
from sparkwright.trust.bounds import count_of

#: bytes per number. A model with float32 in its config is served in bfloat16 too, so "auto" is 2.
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
MODEL_BYTES = 2

#: the block size's unit on CUDA (on a CPU: 128)
ALIGNMENT = 16

#: models with several states of different sizes, and another unit: not predicted
NOT_PREDICTED = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class State:
    """The state of one recurrent layer, in numbers (not bytes)."""

    #: numbers per remembered token
    conv: int
    #: number of remembered tokens
    kept: int
    #: numbers of the SSM state
    ssm: int
    #: as the config sets it, "auto" for the model's own
    ssm_dtype: str = "auto"


def block_size(
    config: Mapping[str, Any],
    kv_cache_dtype: str,
    *,
    ssm_dtype: str = "auto",
    speculative_tokens: int = 0,
    alignment: int = ALIGNMENT,
) -> int | None:
    """Return the tokens per block, None if the model has no such block or its formula is not known.

    Args:
        config: the model's config.json.
        kv_cache_dtype: as in --kv-cache-dtype; "auto" is the checkpoint's own if that is quantized, else the model's.
        ssm_dtype: as in --mamba-ssm-cache-dtype.
        speculative_tokens: of a draft, 0 without one.
        alignment: unit of the block size, tokens.
    """
    architecture = classify(config)
    inner = text(config)
    kv_bytes = BYTES.get(checkpoint_kv_dtype(config) if kv_cache_dtype == "auto" else kv_cache_dtype)
    state_of, token = STATES.get(architecture.mechanism), _kv_numbers(inner)
    if architecture.kind != "recurrent" or architecture.name in NOT_PREDICTED or state_of is None:
        return None
    state = state_of(inner, architecture.name)
    if state is None or kv_bytes is None or token is None:
        return None
    ssm_bytes = BYTES.get(state.ssm_dtype if ssm_dtype == "auto" else ssm_dtype, MODEL_BYTES)
    page = (state.kept + speculative_tokens) * state.conv * MODEL_BYTES + state.ssm * ssm_bytes
    return alignment * -(-page // (alignment * token * kv_bytes))


def checkpoint_kv_dtype(config: Mapping[str, Any]) -> str:
    """Return the KV cache dtype that a quantized checkpoint sets (ModelOpt's can), "bfloat16" if it sets none."""
    full = Part("", config)
    quantization = Part("quantization_config", full.mapping("quantization_config") or {})
    if not quantization.word("quant_method").startswith("modelopt"):
        return "bfloat16"
    inner = Part("", quantization.mapping("quantization") or quantization.keys)
    for part in (inner, quantization):
        scheme = part.mapping("kv_cache_scheme")
        if scheme:
            plain = scheme.get("type") == "float" and scheme.get("dynamic") is False
            return {8: "fp8", 4: "nvfp4"}.get(count_of(scheme.get("num_bits")) or 0, "") if plain else "bfloat16"
        message = part.word("kv_cache_quant_algo").lower()
        if message:
            return message
    return "bfloat16"


def _kv_numbers(part: Part) -> int | None:
    """Return the numbers in keys and values of one token in one attention layer; None for latent attention, whose block has
    another unit."""
    heads = part.number("num_attention_heads")
    hidden = part.number("hidden_size")
    if part.number("kv_lora_rank") or heads is None:
        return None
    width = part.number("head_dim") or (hidden // heads if hidden else None)
    return 2 * (part.number("num_key_value_heads") or heads) * width if width else None


def _gated_deltanet(part: Part, name: str) -> State | None:
    sizes = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
    read = _numbers(part, *(f"linear_{size}" for size in sizes))
    if read is None:
        return None
    key_heads, key_width, value_heads, value_width, kernel = read
    conv = 2 * key_heads * key_width + value_heads * value_width
    # only Qwen3.5's class reads the key
    dtype = part.word("mamba_ssm_dtype") if name.startswith(("Qwen3_5", "ColQwen3_5")) else ""
    return State(conv, kernel - 1, value_heads * value_width * key_width, dtype or "auto")


def _mamba2(part: Part, name: str) -> State | None:
    if part.number("mamba_num_heads"):
        return _nemotron_h(part, name)
    read = _numbers(part, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    expanded = (part.number("mamba_expand") or 0) * (part.number("hidden_size") or 0)
    # Falcon-H1 has a separate width, with a default that no model uses
    inner = part.number("mamba_d_ssm") if name.startswith("FalconH1") else expanded
    if read is None or not inner:
        return None
    heads, width, groups, state, kernel = read
    return State(inner + 2 * groups * state, kernel - 1, heads * width * state)


def _nemotron_h(part: Part, name: str) -> State | None:
    read = _numbers(part, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    if read is None or name not in ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"):
        return None
    heads, width, groups, state, kernel = read
    conv = heads * width + 2 * groups * state
    return State(conv, kernel - 1, heads * width * state, part.word("mamba_ssm_cache_dtype") or "float32")


def _mamba(part: Part, name: str) -> State | None:
    read = _numbers(part, "mamba_expand", "hidden_size", "mamba_d_state", "mamba_d_conv")
    if read is None or not name.startswith("Jamba"):
        return None
    expand, hidden, state, kernel = read
    return State(expand * hidden, kernel - 1, expand * hidden * state)


STATES: dict[str, Callable[[Part, str], State | None]] = {
    tables.GDN: _gated_deltanet,
    tables.MAMBA2: _mamba2,
    tables.MAMBA: _mamba,
}


def _numbers(part: Part, *names: str) -> tuple[int, ...] | None:
    held = [part.number(name) for name in names]
    known = tuple(index for index in held if index is not None)
    return known if len(known) == len(held) else None

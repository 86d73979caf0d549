"""Predicted block sizes, compared with the logs of engines."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG
from sparkwright.engines.vllm.prediction import block_size, checkpoint_kv_dtype
from tests.engines.configs import load_config

LOGS = Path(__file__).parents[2] / "data" / "vllm-0.32.0"

#: the models of the recorded logs
TINY_QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
TINY_JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"], "model_type": "jamba", "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_period": 4, "attn_layer_offset": 2,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip


def predict_on_cpu(model: dict[str, Any], alignment: int) -> int | None:
    """Return the block size on a CPU, which keeps the state in float32 and aligns to 128."""
    return block_size(model, "auto", ssm_dtype="float32", alignment=alignment)


@pytest.mark.parametrize(
    ("name", "dtype", "tokens"),
    [
        ("qwen3.5-35b-a3b", "fp8", 2096),
        ("qwen3.5-35b-a3b", "auto", 1056),
        ("qwen3-next-80b-a3b-instruct", "auto", 544),
        ("qwen3-next-80b-a3b-instruct", "fp8", 1072),
        ("qwen3.5-122b-a10b-nvfp4", "bfloat16", 2096),
        ("qwen3.5-122b-a10b-nvfp4", "fp8", 4176),
        ("nvidia-nemotron-3-nano-30b-a3b-nvfp4", "fp8", 4176),
        ("granite-4.0-h-1b", "auto", 400),
    ],
)
def test_predicted_block_sizes_match_published_logs(name: str, dtype: str, tokens: int) -> None:
    assert block_size(load_config(name), dtype) == tokens


@pytest.mark.parametrize(
    ("case", "model", "logged"), [("qwen3next-eager", TINY_QWEN3_NEXT, 256), ("jamba-eager", TINY_JAMBA, None)]
)
def test_predicted_block_sizes_match_recorded_logs(case: str, model: dict[str, Any], logged: int | None) -> None:
    state = read_log((LOGS / case / "server.log").read_bytes(), LOG)
    assert state.value("block_size") == logged  # a block of 128 is not logged
    assert predict_on_cpu(model, alignment=128) == (logged or 128)


@pytest.mark.parametrize(("case", "model"), [("qwen3next-eager", TINY_QWEN3_NEXT), ("jamba-eager", TINY_JAMBA)])
def test_predicted_padding_matches_recorded_logs(case: str, model: dict[str, Any]) -> None:
    text = (LOGS / case / "server.log").read_text()
    block, state = predict_on_cpu(model, alignment=128), predict_on_cpu(model, alignment=1)  # in tokens, rounded up
    assert block and state
    padding = float(text.split("Padding mamba page size by ")[1].split("%")[0])
    assert 100 * (block - state) / state == pytest.approx(padding, abs=3)


def test_a_checkpoint_with_a_quantized_kv_cache_makes_auto_fp8() -> None:
    model_config = load_config("qwen3.5-122b-a10b-nvfp4")
    assert block_size(model_config, "auto") == block_size(model_config, "fp8") == 4176
    assert block_size({**model_config, "quantization_config": {"quant_method": "fp8"}}, "auto") == 2096


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b-instruct",  # dense
        "granite-4-8b-dense-hybrid",  # dense, with the keys of a hybrid
        "falcon-mamba-7b",  # without attention
        "kimi-linear-48b-a3b-instruct",  # latent attention
        "qwen3.8-flash-next",  # states of several sizes
        "falcon-h1-0.5b",  # the width of its state is missing
        "lfm2-1.2b",
        "minimax-m1",
        "made-unknown-auto-map",
    ],
)
def test_an_unknown_layout_gives_no_block_size(name: str) -> None:
    assert block_size(load_config(name), "auto") is None


def test_an_unknown_dtype_gives_no_block_size() -> None:
    assert block_size(load_config("qwen3.5-35b-a3b"), "turboquant_k8v4") is None


def test_draft_tokens_and_state_dtype_change_the_block_size() -> None:
    model_config = load_config("qwen3.5-35b-a3b")
    assert block_size(model_config, "fp8", speculative_tokens=1) == 2112
    assert block_size(model_config, "fp8", ssm_dtype="bfloat16") == 1072


@pytest.mark.parametrize(
    ("dtypes", "tokens", "padding_percent"),
    [({"ssm_dtype": "float16"}, 128, 82.86), ({"state_dtype": "float32"}, 256, 82.86)],
)
def test_state_dtypes_are_predicted_as_a_real_server_logs_them(
    dtypes: dict[str, Any], tokens: int, padding_percent: float
) -> None:
    """The figures are from starts of vLLM 0.32.0 on a CPU with --mamba-ssm-cache-dtype and --mamba-cache-dtype."""
    assert block_size(TINY_QWEN3_NEXT, "auto", alignment=128, **dtypes) == tokens
    state = block_size(TINY_QWEN3_NEXT, "auto", alignment=1, **dtypes)
    assert state and round((tokens / state - 1) * 100, 2) == padding_percent


@pytest.mark.parametrize(("bits", "dtype"), [(8, "fp8"), (4, "nvfp4"), (16, ""), ({"8": 1}, ""), ([8], ""), (None, "")])
def test_the_kv_cache_scheme_of_a_checkpoint_is_read_from_any_value(bits: Any, dtype: str) -> None:
    scheme = {"type": "float", "dynamic": False, "num_bits": bits}
    model_config = {"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": scheme}}
    assert checkpoint_kv_dtype(model_config) == dtype

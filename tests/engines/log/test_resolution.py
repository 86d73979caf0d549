"""Flags compared with the engine's resolved settings, and the kernels in its log."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log import resolution
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import iter_lines
from sparkwright.engines.vllm.log import parse_settings_line

DATA = Path(__file__).parents[2] / "data"
VLLM, SGLANG, LLAMA = engine.get_engine("vllm"), engine.get_engine("sglang"), engine.get_engine("llama_cpp")
HEAD = "(EngineCore pid=16) INFO 11-21 00:07:43 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
WORKER = "(Worker pid=20) INFO 11-21 00:07:52 [x.py:1] "


def read_start(text: str, target: engine.Engine = VLLM) -> tuple[EngineState, dict[str, str]]:
    settings: dict[str, str] = {}
    for line in iter_lines(text):
        settings = dict(target.log.parse_settings(line) or settings)
    return read_log(text, target.log), settings


def find_mismatches(flags: dict[str, Any], text: str, target: engine.Engine = VLLM) -> list[str]:
    state, settings = read_start(text, target)
    return [mismatch.sentence for mismatch in resolution.find_mismatches(flags, state, settings, target)]


def find_kernel_path(text: str, target: engine.Engine = VLLM) -> dict[str, list[str]]:
    return resolution.kernel_path(read_start(text, target)[0], target.log)


def find_recorded_mismatches(folder: Path) -> list[str]:
    """Return the mismatches of a recorded start with its own command line."""
    words = shlex.split((folder / "command.txt").read_text())
    flags = VLLM.parse_command(words[words.index("serve") + 1 :]).flags
    return find_mismatches(flags, (folder / "server.log").read_text())


RECORDED = [path.parent for path in sorted(DATA.glob("vllm-0.32.0/*/command.txt"))]
DUMPED = [folder for folder in RECORDED if " with config: model=" in (folder / "server.log").read_text()]


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_real_starts_match_their_command_lines(folder: Path) -> None:
    assert find_recorded_mismatches(folder) == []


@pytest.mark.parametrize("folder", DUMPED, ids=lambda folder: folder.name)
def test_a_flag_that_a_real_start_resolved_otherwise_is_named(folder: Path) -> None:
    state, settings = read_start((folder / "server.log").read_text())
    prefix_caching = not state.value("prefix_caching")
    flags = {"enable-prefix-caching": prefix_caching, "dtype": "half", "seed": 7, "enforce-eager": False}
    names = [mismatch.flag for mismatch in resolution.find_mismatches(flags, state, settings, VLLM)]
    assert names == list(flags)


def test_a_real_start_that_resolved_two_settings_otherwise() -> None:
    assert find_recorded_mismatches(DATA / "vllm-0.32.0-resolved") == [
        "compilation-config.mode 3 was requested, but the engine resolved it to NONE",
        "compilation-config.cudagraph_mode FULL was requested, but the engine resolved it to NONE",
    ]


@pytest.mark.parametrize(
    ("flags", "config", "sentences"),
    [
        ({"kv-cache-dtype": "fp8"}, "kv_cache_dtype=fp8_e4m3, x=1", []),
        ({"kv-cache-dtype": "fp8"}, "kv_cache_dtype=auto, x=1", ["kv-cache-dtype fp8 was requested, but the engine resolved it to auto"]),
        ({"quantization": "awq"}, "quantization=awq_marlin, x=1", []),
        ({"dtype": "auto", "max-model-len": "auto", "seed": None}, "dtype=torch.bfloat16, max_seq_len=4096, seed=0", []),
        ({"max-model-len": "32k"}, "max_seq_len=32000, seed=0", []),
        ({"no-such-setting": 3, "served-model-name": "a"}, "served_model_name=b, seed=0", []),
        (
            {"compilation-config": {"pass_config": {"fuse_allreduce_rms": True}, "mode": 3, "cudagraph_mode": "full"}},
            "compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL: 2>,"
            " 'pass_config': {'fuse_allreduce_rms': False}}, seed=0",
            ["compilation-config.pass_config.fuse_allreduce_rms on was requested, but the engine resolved it to off"],
        ),
    ],
)  # fmt: skip
def test_settings_are_compared_by_meaning(flags: dict[str, Any], config: str, sentences: list[str]) -> None:
    assert find_mismatches(flags, HEAD + config) == sentences


def test_a_line_after_the_dump_outranks_it() -> None:
    text = f"{HEAD}enable_chunked_prefill=True, x=1\n(EngineCore pid=1) Disabling chunked prefill: model has non-causal attention layers.\n"
    assert find_mismatches({"enable-chunked-prefill": True}, text) == [
        "enable-chunked-prefill on was requested, but the engine resolved it to off"
    ]


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['B12X', 'MARLIN'].", {"MoE": ["MARLIN"]}),
        ("Using FLASHINFER_CUTLASS Fp8 MoE backend out of potential backends: [].", {"MoE": ["FLASHINFER_CUTLASS"]}),
        ("Using Marlin backend for FP8 MoE", {"MoE": ["Marlin"]}),
        ("Using Triton backend", {"MoE": ["Triton"]}),
        ("Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM", {"linear": ["FLASHINFER_CUTLASS"]}),
        ("Using MarlinNvFp4LinearKernel for NVFP4 GEMM", {"linear": ["MarlinNvFp4LinearKernel"]}),
        ("Selected CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod", {"linear": ["CutlassFP8ScaledMMLinearKernel"]}),
        ("Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].", {"attention": ["FLASH_ATTN"]}),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", {"attention": ["TRITON_ATTN"]}),
        ("Using Triton/FLA GDN prefill kernel", {"GDN prefill": ["Triton/FLA"]}),
    ],
)  # fmt: skip
def test_kernels_are_read_from_the_log_lines_of_each_release(line: str, kinds: dict[str, list[str]]) -> None:
    assert find_kernel_path(WORKER + line) == kinds


def test_the_kernel_path_of_a_real_hybrid() -> None:
    text = (DATA / "vllm-0.32.0" / "hybrid-chunked-on" / "server.log").read_text()
    expected = {"GDN prefill": ["CPU"], "MoE": ["CPU"], "CUDA graphs": ["NONE"], "compile": ["NONE"]}
    assert find_kernel_path(text) == expected


@pytest.mark.parametrize(
    ("requested", "line", "used"),
    [
        ("flashinfer_cutlass", "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: [].", True),
        ("flashinfer_cutlass", "Using 'FLASHINFER_CUTLASS_MXFP4_BF16' Mxfp4 MoE backend.", True),
        ("cutlass", "Using VLLM_CUTLASS Fp8 MoE backend out of potential backends: [].", True),
        ("deep_gemm", "Using BATCHED_DEEPGEMM Fp8 MoE backend out of potential backends: [].", True),
        ("flashinfer_cutlass", "Using 'MARLIN' NvFp4 MoE backend out of potential backends: [].", False),
        ("auto", "Using 'MARLIN' NvFp4 MoE backend out of potential backends: [].", True),
    ],
)
def test_a_requested_backend_that_is_not_used_is_named(requested: str, line: str, used: bool) -> None:
    assert (find_mismatches({"moe-backend": requested}, WORKER + line) == []) is used


def test_a_weight_only_kernel_instead_of_another_is_reported_with_its_cost() -> None:
    before = {"MoE": ["FLASHINFER_CUTLASS"], "attention": ["FLASHINFER"]}
    now = {"MoE": ["MARLIN"], "attention": ["FLASHINFER"]}
    (change,) = resolution.describe_kernel_changes(before, now, VLLM.log)
    assert change.startswith("MoE MARLIN instead of FLASHINFER_CUTLASS (weight-only: decoding is nearly as fast")
    assert resolution.describe_kernel_changes(now, before, VLLM.log) == ["MoE FLASHINFER_CUTLASS instead of MARLIN"]
    assert resolution.describe_kernel_changes({}, now, VLLM.log) == []  # the earlier kernels are unknown


@pytest.mark.parametrize("text", ["(" * 5000, "{'a': " * 4000, "a=" * 5000, "X(a=1", "{'a': 'b"])
def test_a_hostile_dump_is_parsed_within_bounds(text: str) -> None:
    resolution.parse_nested(text)
    list(resolution.parse_pairs(text))


def test_sglang_flags_are_compared_with_its_resolved_arguments() -> None:
    text = (
        "[2026-11-21 00:07:43] server_args={'model_path': '/m', 'api_key': 'hunter2', 'disable_radix_cache': True,"
        " 'attention_backend': 'triton', 'quantization': None, 'random_seed': 918273, 'moe_runner_backend': 'auto'}\n"
    )
    _, settings = read_start(text, SGLANG)
    assert "hunter2" not in str(settings) and "random_seed" not in settings
    assert find_kernel_path(text, SGLANG) == {"attention": ["triton"]}
    assert find_mismatches({"attention-backend": "flashinfer", "disable-radix-cache": True}, text, SGLANG) == [
        "attention-backend flashinfer was requested, but the engine resolved it to triton"
    ]


def test_llama_cpp_reports_disabled_flash_attention() -> None:
    text = "0.00.100.000 I resolve_fused_ops: Flash Attention was auto, set to disabled\n"
    assert find_mismatches({"flash-attn": "on"}, text, LLAMA) == [
        "flash-attn enabled was requested, but the engine resolved it to disabled"
    ]
    assert find_mismatches({"flash-attn": "auto"}, text, LLAMA) == []
    assert find_kernel_path(text, LLAMA) == {"flash attention": ["disabled"]}


def read_settings(case: str) -> dict[str, str]:
    """Return the settings of a recorded start; one model has two names in these logs."""
    text = (
        (DATA / "vllm-0.32.0" / case / "server.log")
        .read_text(errors="replace")
        .replace("tiny-qwen3next", "gated_delta")
    )
    return next(settings for line in text.splitlines() if (settings := parse_settings_line(line)))


def test_a_dump_is_split_at_top_level_commas() -> None:
    settings = read_settings("hybrid-defaults")
    assert (settings["enable_chunked_prefill"], settings["max_seq_len"], settings["seed"]) == ("True", "4096", "0")
    assert settings["structured_outputs_config"].startswith("StructuredOutputsConfig(backend='auto', ")
    assert "inductor_passes" in settings["compilation_config"]


def test_enabling_chunked_prefill_explicitly_changes_nothing_on_a_hybrid() -> None:
    default, enabled = read_settings("hybrid-defaults"), read_settings("hybrid-chunked-on")
    assert resolution.find_differences(default, enabled) == {}
    assert resolution.evaluate_settings(default, enabled, ["enable-chunked-prefill"], VLLM) == "same"


def test_disabling_chunked_prefill_shows_in_the_dump() -> None:
    on, off = read_settings("hybrid-prefix-off"), read_settings("hybrid-chunked-off-prefix-off")
    assert resolution.find_differences(on, off)["enable_chunked_prefill"] == ("True", "False")
    assert resolution.evaluate_settings(on, off, ["enable-chunked-prefill"], VLLM) == "differs"


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        (["enable-chunked-prefill", "max-model-len"], "same"),
        (["async-scheduling"], "not shown"),
        (["enable-chunked-prefill", "max-num-seqs"], "not shown"),
    ],
)
def test_equal_dumps_prove_nothing_about_flags_that_they_lack(changed: list[str], verdict: str) -> None:
    settings = read_settings("hybrid-defaults")
    assert resolution.evaluate_settings(settings, dict(settings), changed, VLLM) == verdict


def test_paths_are_not_compared() -> None:
    line = "INFO Initializing a V1 LLM engine (v0.32.0) with config: seed=0, compilation_config={'cache_dir': '/a', 'mode': 3}"
    assert parse_settings_line(line) == parse_settings_line(line.replace("/a", "/b"))
    assert parse_settings_line("another line") is None


def test_empty_dumps_are_not_equal() -> None:
    assert resolution.evaluate_settings({}, {}, [], VLLM) == "not shown"

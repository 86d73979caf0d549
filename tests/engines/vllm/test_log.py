"""Start-up logs of a real vLLM 0.32.0: effective settings, stages and failures."""

from pathlib import Path

import pytest

from sparkwright.engines.log import state as log_state
from sparkwright.engines.log.reader import EngineState, read_log
from sparkwright.engines.log.state import FIELDS
from sparkwright.engines.vllm.log import LOG

DATA = Path(__file__).parents[2] / "data" / "vllm-0.32.0"
GPU_START = """\
(APIServer pid=1) INFO 12-31 23:58:00 [api_utils.py:286] non-default args: {'model': '/m'}
(EngineCore pid=77) INFO 12-31 23:58:10 [core.py:133] Initializing a V1 LLM engine (v0.27.1) with config: model='/m', \
quantization=fp8, enforce_eager=False, kv_cache_dtype=fp8, enable_prefix_caching=True, enable_chunked_prefill=True, \
compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'x': 1}
(EngineCore pid=77) INFO 12-31 23:58:11 [cuda.py:482] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].
(EngineCore pid=77) WARNING 12-31 23:58:12 [gpu_model_runner.py:6000] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with x; setting cudagraph_mode=PIECEWISE
(EngineCore pid=77) INFO 12-31 23:58:20 [gpu_model_runner.py:3102] Starting to load model /m...
(EngineCore pid=77) INFO 01-01 00:02:00 [default_loader.py:501] Loading weights took 214.30 seconds
(EngineCore pid=77) INFO 01-01 00:02:01 [interface.py:1096] Setting attention block size to 2096 tokens to ensure that
(EngineCore pid=77) INFO 01-01 00:02:55 [monitor.py:34] torch.compile took 52.10 s in total
(EngineCore pid=77) INFO 01-01 00:03:00 [kv_cache_utils.py:2327] GPU KV cache size: 2,231,552 tokens, Maximum concurrency for 131,072 tokens per request: 17.03x
2027-01-01 00:03:05,667 - INFO - autotuner.py:256 - flashinfer.jit: [Autotuner]: Autotuning process starts ...
2027-01-01 00:03:43,018 - INFO - autotuner.py:262 - flashinfer.jit: [Autotuner]: Autotuning process ends
(EngineCore pid=77) INFO 01-01 00:04:00 [gpu_model_runner.py:3480] Graph capturing finished in 14 secs, took 0.31 GiB
(EngineCore pid=77) INFO 01-01 00:04:01 [core.py:402] init engine (profile, create kv cache, warmup model) took 121.00 s (compilation: 52.10 s)
(APIServer pid=1) INFO 01-01 00:04:30 [entry.py:140] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=1) INFO 01-01 00:04:31 [launcher.py:195] Route: /version, Methods: GET
INFO:     Application startup complete.
"""


def read_bytes(case: str) -> bytes:
    return (DATA / case / "server.log").read_bytes()


def read_state(case: str, later_lines: str = "") -> EngineState:
    return read_log(read_bytes(case) + later_lines.encode(), LOG)


@pytest.mark.parametrize(
    ("case", "chunked", "prefix"),
    [
        ("hybrid-chunked-on", True, True),
        ("qwen3next-eager", True, True),
        ("hybrid-prefix-off", True, False),
        ("hybrid-chunked-off-prefix-off", False, False),
        ("llama-eager", True, True),
        ("llama-chunked-off", False, True),
    ],
)
def test_effective_settings_are_read_from_the_dump(case: str, chunked: bool, prefix: bool) -> None:
    state = read_state(case)
    assert (state.value("chunked_prefill"), state.value("prefix_caching")) == (chunked, prefix)
    assert state.value("version") == "0.32.0"
    assert "Initializing a V1 LLM engine" in state.readings["chunked_prefill"].evidence
    assert state.ready


def test_block_size_cache_mode_and_capacity_of_a_hybrid_are_read() -> None:
    state = read_state("hybrid-chunked-on")
    expected = {"block_size": 256, "mamba_cache_mode": "align", "kv_cache_tokens": 1525201, "max_concurrency": 372.36}
    assert {name: state.value(name) for name in expected} == expected
    assert state.shards == (1, 1)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("hybrid-chunked-off", "prefix caching on this recurrent model needs chunked prefill, which is turned off."),
        ("err-unknown-arg", "unknown argument: --no-such-flag."),
        ("err-max-model-len", "max-model-len 1000000 is more than the model's 8192.0."),
        ("err-no-model", "there is no model at /models/does-not-exist in the container."),
        ("err-port-in-use", "its port is in use inside the container's network."),
        ("err-kv-too-big", "its KV cache needs 900.0 GiB of memory, and 15.03 GiB were free."),
        ("jamba-eager", "its engine failed while it served a request: IndexError: Dimension out of range (expected to be in range of [-2, 1], but got 2)."),
    ],
)  # fmt: skip
def test_the_failure_of_a_real_start_is_explained(case: str, sentence: str) -> None:
    state = read_state(case)
    assert state.failure.value == sentence
    assert state.failure.evidence


def test_a_stopped_server_has_not_failed() -> None:
    assert b"EngineDeadError" in read_bytes("llama-eager")
    assert read_state("llama-eager").failure.value is None


def test_only_the_last_start_counts() -> None:
    state = read_log(read_bytes("llama-chunked-off") + read_bytes("llama-eager"), LOG)
    assert state.value("chunked_prefill") is True
    assert not any("disabling chunked prefill" in warning for warning in state.warnings)


def test_a_truncated_last_start_leaves_settings_unknown() -> None:
    log = read_bytes("hybrid-chunked-on")
    banner_only = log[: log.index(b"non-default args")]
    state = read_log(log + banner_only, LOG)
    assert {name for name in FIELDS if state.value(name) is not None} == {"version"}
    before_banner = log + log[: log.index(b"  version ")]
    assert read_log(before_banner, LOG).value("kv_cache_tokens") == 1525201, "no new start has begun"
    arguments_only = log[log.index(b"non-default args") : log.index(b"Resolved architecture")]
    assert read_log(log + arguments_only, LOG).value("version") is None


def test_refused_arguments_begin_a_new_start() -> None:
    state = read_log(read_bytes("llama-eager") + read_bytes("err-unknown-arg"), LOG)
    assert (state.value("version"), state.ready) == (None, False)
    assert state.failure.value == "unknown argument: --no-such-flag."


def test_a_crash_dump_is_neither_a_start_nor_a_value() -> None:
    dump = "Dumping input data for V1 LLM engine (v9.9.9) with config: model='x', enable_chunked_prefill=False, quantization=fp8, \n"
    assert read_state("llama-eager", dump).to_json() == read_state("llama-eager").to_json()


@pytest.mark.parametrize(
    ("line", "version", "chunked"),
    [
        ("INFO 01-01 Initializing a V0 LLM engine (v0.10.1) with config: chunked_prefill_enabled=False, x", "0.10.1", False),
        ("Initializing a V1 LLM engine (v0.11.0) with config: chunked_prefill_enabled=True, pooler", "0.11.0", True),
        ("(EngineCore_DP0 pid=9) INFO Initializing a V1 LLM engine (v0.17.1+cu130) with config: enable_chunked_prefill=False, x", "0.17.1+cu130", False),
    ],
)  # fmt: skip
def test_the_dump_of_every_version_is_read(line: str, version: str, chunked: bool) -> None:
    state = read_log(line, LOG)
    assert (state.value("version"), state.value("chunked_prefill")) == (version, chunked)


@pytest.mark.parametrize(
    "banner",
    [
        "(APIServer pid=1) INFO 10-06 11:58:30 [api_server.py:1839] vLLM API server version 0.11.0",
        "(APIServer pid=1) INFO 10-06 11:58:30 [a.py:1] vLLM server version 0.11.0, serving model /m",
        "(APIServer pid=1) INFO 10-06 11:58:30 [a.py:1]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.11.0",
    ],
)
def test_every_banner_begins_a_start_and_names_the_version(banner: str) -> None:
    state = read_state("llama-eager", f"{banner}\n")
    assert {name: reading.value for name, reading in state.readings.items()} == {"version": "0.11.0"}


def test_a_logged_prompt_is_not_a_log_line() -> None:
    request = "INFO [logger.py:1] Received request cmpl-1: prompt: 'non-default args: { enable_chunked_prefill=False, KV cache size: 1 tokens'\n"
    assert read_state("llama-eager", request * 3).to_json() == read_state("llama-eager").to_json()


def test_settings_and_durations_of_a_gpu_start_are_read() -> None:
    state = read_log(GPU_START, LOG)
    expected = {"attention_backend": "FLASHINFER", "cudagraph_mode": "PIECEWISE", "cuda_graphs": True}
    expected |= {
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "block_size": 2096,
        "kv_cache_tokens": 2231552,
        "max_concurrency": 17.03,
    }
    expected |= {"weights_s": 214.3, "compile_s": 52.1, "autotune_s": 37.351}
    expected |= {"graphs_s": 14.0, "init_s": 121.0, "ready_s": 390.0}
    assert {name: state.value(name) for name in expected} == expected
    stages = "arguments", "engine", "weights", "compile", "kv cache", "autotune", "graphs", "server"
    assert state.stage_s == dict(zip(stages, (10.0, 10.0, 220.0, 60.0, 5.667, 54.333, 30.0, 0.0), strict=True))
    assert state.warnings == []


def test_repeated_warnings_are_reported_once() -> None:
    warning = "(Worker pid=9) WARNING 11-21 10:00:0%d [jit.py:9] Triton kernel JIT compilation during inference: %s. This causes\n"
    state = read_log("".join(warning % (number % 10, f"kernel_{number}") for number in range(100)), LOG)
    assert ["kernel_0. This causes" in warning for warning in state.warnings] == [True]


def test_a_missing_setting_is_unknown_and_not_off() -> None:
    state = read_log("INFO: Started server process [1]\n", LOG)
    assert (state.value("chunked_prefill"), state.ready) == (None, False)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Disabling chunked prefill for model without KVCache", "chunked_prefill"),
        ("Disabling prefix caching: model has non-causal attention layers.", "prefix_caching"),
    ],
)
def test_a_later_line_outranks_the_dump(line: str, name: str) -> None:
    assert read_state("llama-eager", f"INFO {line}\n").value(name) is False


COMPILED = DATA.with_name("vllm-0.32.0-compiled")


def test_stages_of_a_gpu_start_are_formatted_in_order() -> None:
    stages = log_state.stage_durations(read_log(GPU_START.encode(), LOG))
    assert log_state.format_stages(stages) == "weights 214 s, compile 52 s, autotune 37 s, graphs 14 s"


def test_an_eager_start_has_no_compile_or_graph_stage() -> None:
    assert set(log_state.stage_durations(read_state("llama-eager"))) == {"weights"}


def test_invalid_durations_from_a_host_are_not_shown() -> None:
    stages = {"weights": "[red]1[/]", "compile": True, "graphs": 2.5, "other": 1}
    assert log_state.format_stages(stages) == "graphs 2.5 s"


def test_the_compile_time_of_a_compiled_start_is_read() -> None:
    state = read_log((COMPILED / "cold.log").read_bytes(), LOG)
    assert log_state.format_stages(log_state.stage_durations(state)) == "weights 0.1 s, compile 175 s"
    assert not [warning for warning in state.warnings if "load failure" in warning]


def test_an_artifact_that_fails_to_load_is_a_warning() -> None:
    state = read_log((COMPILED / "warm.log").read_bytes(), LOG)
    assert [warning for warning in state.warnings if "Compiling model again due to a load failure" in warning]

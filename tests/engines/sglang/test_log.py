"""SGLang's log, written according to its source (0.5.9, 0.5.23), not recorded from a real server."""

from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log.reader import read_log, strip_prefix

LOG = engine.get_engine("sglang").log
LINE = "[2026-11-21 00:08:10] "
START = """\
[2026-11-21 00:07:43] server_args=ServerArgs(model_path='/m', quantization='modelopt_fp4', disable_radix_cache=False, port=30000)
[2026-11-21 00:07:50] Attention backend not specified. Use flashinfer backend by default.
[2026-11-21 00:08:00] Load weight begin. avail mem=110.10 GB
[2026-11-21 00:09:00] Load weight end. elapsed=60.25 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=90.10 GB, mem usage=20.00 GB.
[2026-11-21 00:09:01] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 400000, K size: 10.00 GB, V size: 10.00 GB
[2026-11-21 00:09:02] Capture target decode CUDA graph begin. backend=full
[2026-11-21 00:09:30] max_total_num_tokens=400000, chunked_prefill_size={size}, max_prefill_tokens=16384, max_running_requests=48, context_len=131072, available_gpu_mem=12.00 GB
[2026-11-21 00:09:43] The server is fired up and ready to roll!
"""


@pytest.mark.parametrize(("size", "on"), [(8192, True), (-1, False)])
def test_the_scheduler_line_has_the_settings(size: int, on: bool) -> None:
    state = read_log(START.format(size=size), LOG)
    expected: dict[str, Any] = {
        "chunked_prefill": on,
        "prefix_caching": True,
        "max_model_len": 131072,
        "slots": 48,
        "ready": True,
    }
    expected |= {"attention_backend": "flashinfer", "kv_cache_tokens": 400000}
    expected |= {
        "kv_cache_dtype": "float8_e4m3fn",
        "quantization": "modelopt_fp4",
        "weights_s": 60.25,
        "ready_s": 120.0,
    }
    assert {name: state.value(name) for name in expected} == expected
    assert state.stage_s == {"arguments": 17.0, "weights": 61.0, "kv cache": 1.0, "graphs": 28.0, "scheduler": 13.0}


@pytest.mark.parametrize(
    ("cause", "consequence", "sentence"),
    [
        ("sglang serve: error: unrecognized arguments: --x", "", "unknown argument: --x."),
        ("launch_server.py: error: argument --port: expected one argument", "",
         "the engine refuses its arguments: argument --port: expected one argument."),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5",
         "Rank 0 scheduler died during initialization (exit code: 1).",
         "no memory is left for its KV cache: mem-fraction-static 0.5 is too low for the weights."),
        ("ValueError: Model architectures ['XForCausalLM'] are not supported for now.",
         "SIGQUIT received. It usually means one child failed.", "this engine cannot load XForCausalLM."),
        ("", "Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (OOM killer)",
         "a process of its engine was OOM-killed."),
        (f"{LINE}Scheduler hit an exception: Traceback (most recent call last):\nKeyError: 'x'",
         "SIGQUIT received. It usually means", "KeyError: 'x'."),
    ],
)  # fmt: skip
def test_the_cause_outranks_its_consequences(cause: str, consequence: str, sentence: str) -> None:
    start = START.partition("[2026-11-21 00:08:00]")[0]
    log = f"{start}{cause}\n" + (f"{LINE}{consequence}\n" if consequence else "")
    assert read_log(log, LOG).failure.value == sentence


def test_a_requested_stop_is_not_a_failure() -> None:
    stop = "[2026-11-21 00:10:00] SIGTERM received. signum=15. Draining requests and shutting down...\n"
    state = read_log(f"{START.format(size=8192)}{stop}[2026-11-21 00:10:01] SIGQUIT received. It usually\n", LOG)
    assert (state.value("stopped"), state.failure.value) == (True, None)
    assert strip_prefix(stop, LOG).startswith("SIGTERM received.")


def test_the_newer_release_prints_its_arguments_as_a_mapping() -> None:
    newer = START.replace(
        "ServerArgs(model_path='/m', quantization='modelopt_fp4', disable_radix_cache=False, port=30000)",
        "{'model_path': '/m', 'quantization': 'modelopt_fp4', 'disable_radix_cache': True, 'port': 30000}",
    )
    state = read_log(newer.replace("{size}", "8192"), LOG)
    assert (state.value("prefix_caching"), state.value("quantization"), state.stage) == (False, "modelopt_fp4", "ready")


def test_a_backend_chosen_before_the_arguments_is_read() -> None:
    """0.5.23 resolves its arguments before it prints the line that begins a start."""
    selection = "[2026-11-21 00:07:42] Attention backend not specified. Use triton backend by default."
    lines = [line for line in START.format(size=8192).splitlines() if "Attention backend" not in line]
    arguments = lines[0].replace("port=", "decode_attention_backend='fa3', attention_backend='triton', port=")
    assert read_log("\n".join([selection, arguments, *lines[1:]]), LOG).value("attention_backend") == "triton"


def test_chunked_prefill_disabled_for_the_model_is_off() -> None:
    message = "Chunked prefill is disabled for multimodal models with the Transformers backend to avoid partial multimodal chunk mismatches."
    lines = START.format(size=8192).splitlines()
    state = read_log("\n".join([*lines[:-1], f"[2026-11-21 00:09:31] {message}", lines[-1]]), LOG)
    assert state.value("chunked_prefill") is False
    assert message in state.reading("chunked_prefill").evidence


def test_a_cache_sized_after_the_graphs_is_read() -> None:
    lines = START.format(size=8192).splitlines()
    lines[4] = lines[4].replace("is allocated", "VA upper bound")
    sized = "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 400000, KV size: 20.00 GB, avail mem=9.00 GB"
    state = read_log("\n".join([*lines[:6], f"[2026-11-21 00:09:20] {sized}", *lines[6:]]), LOG)
    assert (state.value("kv_cache_dtype"), state.value("kv_cache_tokens"), state.ready) == ("bfloat16", 400000, True)
    assert "kv cache" in state.stage_s

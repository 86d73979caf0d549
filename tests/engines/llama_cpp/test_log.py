"""Recorded logs of the real llama-server, built for a CPU; command.txt in each folder has the command line.

b10434 was built for processors with AMX and crashed at its first computation where these logs were recorded, so all logs of ready
servers are from b10068 and b11549. If a context cannot be created, b10068 exits with SIGSEGV (-11).
"""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log import state as log_state
from sparkwright.engines.log.reader import EngineState, read_log, strip_prefix
from sparkwright.units import MIB

DATA = Path(__file__).parents[2] / "data"
LOG = engine.get_engine("llama_cpp").log
FAILURES = {
    "bad-cache-type": "the engine does not accept fp8 for -ctk.",
    "bad-number": "-c takes a number.",
    "bad-template": "it does not support the template in chat-template.",
    "context-too-large-lv4": "it ran out of memory: a buffer of 16384.00 MiB could not be allocated.",
    "folder": "the model is a folder or an empty file, not a GGUF file.",
    "half-gguf": "the model's file is truncated: a tensor lies beyond its end.",
    "head-gguf": "the model's file is truncated or damaged: its key-value pairs cannot be read.",
    "missing-draft": "it cannot open models/draft.gguf in the container: No such file or directory.",
    "missing-gguf": "it cannot open models/nothere.gguf in the container: No such file or directory.",
    "missing-gguf-lv4": "it cannot open models/nothere.gguf in the container: No such file or directory.",
    "missing-key-file": "--api-key-file: it cannot open models/key.",
    "missing-mmproj": "it cannot open models/mmproj.gguf in the container: No such file or directory.",
    "missing-value": "-c needs a value.",
    "not-gguf": "the model's file is not a GGUF file.",
    "other-engines-flag": "unknown argument: --max-model-len.",
    "port-in-use": "it cannot listen on 127.0.0.1, port 18112: the port is in use, or the container does not have this address.",
    "quantized-v-without-fa": "a quantized V cache (cache-type-v) needs flash-attn, which is off.",
    "unknown-architecture": "this engine cannot load llamx.",
    "unknown-flag": "unknown argument: --no-such-flag.",
    "unknown-tokenizer": "this engine is too old for the model's tokenizer (gpt-9).",
}
#: cases of ready servers; all but the last were stopped with SIGTERM
READY = ("ready", "ready-lv4", "defaults-lv4", "fa-off-lv4", "capped", "killed")
CASES = {f"{folder.parent.name}/{folder.name}": folder for folder in sorted(DATA.glob("llama-b*/*"))}


def read_bytes(case: str, build: str = "b10068") -> bytes:
    return (DATA / f"llama-{build}" / case / "server.log").read_bytes()


def read_state(case: str, build: str = "b10068") -> EngineState:
    return read_log(read_bytes(case, build), LOG)


@pytest.mark.parametrize("name", CASES)
def test_a_start_is_ready_or_its_failure_is_explained(name: str) -> None:
    folder = CASES[name]
    state = read_log((folder / "server.log").read_bytes(), LOG)
    expected = FAILURES.get(folder.name)
    assert state.failure.value == expected
    assert state.value("ready") is (expected is None) is (folder.name in READY)
    assert (folder / "exit").read_text() != "0\n" or expected is None


@pytest.mark.parametrize("case", READY)
def test_sigterm_is_a_stop_and_sigkill_is_not(case: str) -> None:
    folder = DATA / "llama-b10068" / case
    assert read_state(case).value("stopped") is (True if (folder / "exit").read_text() == "0\n" else None)


def test_slots_are_read_at_any_verbosity() -> None:
    state = read_state("ready")
    expected = {"slots": 2, "max_model_len": 2048, "kv_unified": False, "version": None, "kv_cache_dtype": None}
    assert {name: state.value(name) for name in expected} == expected
    assert state.value("ready_s") > 0
    assert ["CORS" in warning for warning in state.warnings] == [True]


def test_a_verbose_log_has_all_settings() -> None:
    state = read_state("ready-lv4")
    expected: dict[str, Any] = {"version": "b1-571d0d5", "architecture": "llama", "quantization": "F16", "slots": 2}
    expected |= {"kv_cache_tokens": 4096, "kv_cache_mib": 4.25, "kv_cache_dtype": "q8_0", "flash_attention": "enabled"}
    assert {name: state.value(name) for name in expected} == expected
    assert {name: state.to_json()[name] for name in expected} == expected
    assert list(state.stage_s) == ["arguments", "model", "weights", "context", "kv cache", "warm-up", "slots", "server"]
    assert all(state.reading(name).evidence for name in expected)


def test_another_build_logs_the_same_settings() -> None:
    for case in ("ready-lv4", "fa-off-lv4", "capped"):
        older, newer = (read_state(case, build) for build in ("b10068", "b11549"))
        shown = ("slots", "max_model_len", "kv_unified", "kv_cache_dtype", "kv_cache_mib", "flash_attention", "stopped")
        assert {name: newer.value(name) for name in shown} == {name: older.value(name) for name in shown}
        assert newer.value("version") == "b0-unknown", "the name of a build without git"


def test_automatic_flash_attention_is_resolved() -> None:
    assert read_state("defaults-lv4").value("flash_attention") == "enabled"
    assert read_state("fa-off-lv4").value("flash_attention") == "disabled"
    assert read_state("defaults-lv4").value("kv_unified") is True


def test_different_types_of_k_and_v_caches_are_named() -> None:
    line = "0.00.1 I llama_kv_cache: size =    3.06 MiB (  2048 cells,   4 layers,  2/2 seqs), K (f16):    2.00 MiB, V (q8_0):    1.06 MiB"
    assert read_log(line, LOG).value("kv_cache_dtype") == "K f16, V q8_0"


def test_chunked_prefill_is_always_on() -> None:
    reading = read_state("ready").reading("chunked_prefill")
    assert (reading.value, "no flag turns that off" in reading.evidence) == (True, True)
    assert read_log("another log\n", LOG).value("chunked_prefill") is None


def test_a_capped_context_is_a_warning() -> None:
    state = read_state("capped")
    (warning,) = [warning for warning in state.warnings if any(row.match(warning) for row in LOG.unavailable_features)]
    assert strip_prefix(warning, LOG).startswith("load_model: the slot context (25088) exceeds the training context")
    assert (state.value("max_model_len"), state.ready) == (8192, True)


def test_only_the_last_start_counts() -> None:
    logs = [read_bytes(case) for case in ("capped", "ready-lv4", "ready")]
    state = read_log(b"".join(logs), LOG)
    assert (state.value("slots"), state.value("version"), len(state.warnings)) == (2, None, 1)
    state = read_log(logs[0] + read_bytes("unknown-flag", "b10434"), LOG)
    assert (state.value("slots"), state.failure.value) == (None, "unknown argument: --no-such-flag.")


def test_answers_and_refused_requests_are_not_failures() -> None:
    log = read_bytes("ready").decode(errors="replace")
    assert "exceeds the available context size" in log and "unparsed" in log
    answer = "0.09.000.000 W common_chat_peg_parse: unparsed peg-native output: error loading model: CUDA error: no\n"
    before, stop = log.rsplit("\n", 2)[0], "0.09.100.000 E srv  x: failed to load model, 'a'\n"
    assert read_log(f"{before}\n{answer}{stop}", LOG).failure.value is None


def test_a_cuda_error_while_serving_is_a_failure() -> None:
    state = read_log(read_bytes("killed") + b"CUDA error: an illegal memory access was encountered\n", LOG)
    assert state.failure.value == "CUDA failed: an illegal memory access was encountered."


def test_the_device_is_read_from_buffers_and_not_from_offloaded_layers() -> None:
    log = read_bytes("ready-lv4").decode()
    assert "offloaded 5/5 layers to GPU" in log
    assert not any(row.match(log) for row in LOG.gpu_lines) and all(row.match(log) for row in LOG.cpu_lines)
    gpu = "0.01.000.000 I load_tensors:        CUDA0 model buffer size = 15943.20 MiB"
    assert all(row.match(gpu) for row in LOG.gpu_lines)


def test_caches_and_buffers_of_all_devices_are_added() -> None:
    """Lines of gpt-oss and Gemma (windows), of Qwen (recurrent layers) and of a draft model, as GB10 users posted them."""
    log = """\
0.27.1 I load_tensors:        CUDA0 model buffer size =  1242.03 MiB
0.27.2 I llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), K (f16): 1536.00 MiB, V (f16): 1536.00 MiB
0.27.3 I llama_kv_cache: size =   18.00 MiB (   768 cells,  12 layers,  1/1 seqs), K (f16):    9.00 MiB, V (f16):    9.00 MiB
0.27.4 I llama_memory_recurrent: size =   50.25 MiB (     1 cells,  32 layers,  1 seqs  0 rs_seq), R (f32):    2.25 MiB
0.27.5 I sched_reserve:      CUDA0 compute buffer size =   456.98 MiB
0.27.6 I sched_reserve:  CUDA_Host compute buffer size =   263.15 MiB
"""
    state = read_log(log, LOG)
    assert (state.value("kv_cache_mib"), state.value("recurrent_mib")) == (3090.0, 50.25)
    assert log_state.gpu_memory_bytes(state) == int(1242.03 * MIB) + int(3090 * MIB) + int(50.25 * MIB) + int(
        456.98 * MIB
    )

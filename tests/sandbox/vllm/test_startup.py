"""The simulated vLLM has the start-up log of a real one, and fails with the same messages."""

import ast
import json
import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG
from sparkwright.sandbox import hub
from sparkwright.sandbox.vllm.api import VllmApi
from sparkwright.sandbox.vllm.engine import Engine
from tests.remote.sshd import free_port
from tests.sandbox.vllm.serve_help import HELP

DATA = HELP.parent
RunEngine = Callable[..., tuple[str, int]]
VERSION = "0.32.0"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192}
QWEN3NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "max_position_embeddings": 8192, "head_dim": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 64, "num_key_value_heads": 2,
}  # fmt: skip
JAMBA = {"architectures": ["JambaForCausalLM"], "model_type": "jamba", "max_position_embeddings": 8192, "mamba_d_state": 16}  # fmt: skip
TINY = {"/models/tiny-llama": LLAMA, "/models/tiny-qwen3next": QWEN3NEXT, "/models/tiny-jamba": JAMBA}
QWEN35 = hub.QWEN35_CONFIG


@pytest.fixture
def run_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunEngine:
    """A function that runs an engine until it serves, and returns its log and exit code."""
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")

    def run(config: dict[str, Any] | None, *words: str, version: str = VERSION, port: int = 0) -> tuple[str, int]:
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        lines: list[str] = []

        def log(line: str) -> None:
            lines.append(line)
            if "Application startup complete." in line:
                engine.stop()

        listen = ("127.0.0.1", port or free_port())
        engine = Engine(words, api=VllmApi, version=version, log=log, host_path=lambda _: tmp_path, listen=listen)
        code = engine.run()
        return "\n".join(lines), code

    return run


def read_arguments(log: str) -> Any:
    match = re.search(r"non-default args: (\{.*\})", log)
    assert match is not None, log
    return ast.literal_eval(match[1])


def read_command(case: str) -> list[str]:
    """Return the recorded words after `vllm serve`."""
    return shlex.split((DATA / case / "command.txt").read_text().partition("vllm serve ")[2])


SERVING_STARTS = ("llama-eager", "llama-chunked-off", "llama-named-apikey", "qwen3next-eager", "hybrid-chunked-on", "hybrid-prefix-off",
          "hybrid-chunked-off-prefix-off", "jamba-eager")  # fmt: skip


@pytest.mark.parametrize("case", SERVING_STARTS)
def test_a_start_logs_the_same_as_the_real_engine(run_engine: RunEngine, case: str) -> None:
    words = read_command(case)
    real_log = (DATA / case / "server.log").read_text(errors="replace")
    log, code = run_engine(TINY[words[0]], *words)
    assert code == 0, log
    assert read_arguments(log) == read_arguments(real_log)
    real, ours = read_log(real_log, LOG), read_log(log, LOG)
    known = {name for name, reading in real.readings.items() if reading.value is not None}
    assert known - {"failure"} <= set(ours.readings)  # the real Jamba exits at its first request
    for name in ("version", "architecture", "chunked_prefill", "prefix_caching", "mamba_cache_mode", "kv_cache_dtype",
                 "quantization", "max_model_len"):  # fmt: skip
        assert ours.value(name) == real.value(name), name
    assert ours.stage == "ready"
    our_warnings, real_warnings = ([re.sub(r".*\] ", "", line) for line in state.warnings] for state in (ours, real))
    assert our_warnings == real_warnings


FAILED_STARTS = ("err-max-model-len", "err-no-model", "hybrid-chunked-off", "err-unknown-arg")


@pytest.mark.parametrize("case", FAILED_STARTS)
def test_a_failed_start_logs_the_message_of_the_real_engine(run_engine: RunEngine, case: str) -> None:
    words = read_command(case)
    real_log = (DATA / case / "server.log").read_text()
    log, code = run_engine(TINY.get(words[0]), *words)
    assert code == json.loads((DATA / case / "result.json").read_text())["exit_code"]
    message, real = read_log(log, LOG).failure, read_log(real_log, LOG).failure
    assert message.value == real.value is not None
    assert message.evidence.partition(" [type=")[0] == real.evidence.partition(" [type=")[0]
    assert read_log(log, LOG).value("architecture") == read_log(real_log, LOG).value("architecture")


def test_a_taken_port_ends_the_start_before_the_model_is_read(run_engine: RunEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        log, code = run_engine(None, "/m", port=other.getsockname()[1])
    real = (DATA / "err-port-in-use/server.log").read_text()
    last_line = log.splitlines()[-1]
    assert (code, last_line) == (1, "OSError: [Errno 98] Address already in use") and last_line in real
    assert "Resolved architecture" not in log + real


ALIGN = "Chunked prefill is required for mamba cache mode 'align'."
NEW_ALIGN = "Chunked prefill is required for Mamba prefix caching."
BLOCK = "In Mamba cache align mode, block_size (2096) must be <= max_num_batched_tokens (2048)."
OFF = ("--no-enable-chunked-prefill", "--max-model-len", "2048")
BIG = ("--enable-prefix-caching", "--kv-cache-dtype", "fp8")

#: options of a gated delta net, version, error message ("" if it serves)
REFUSED = [
    (OFF, "0.14.1", ""),
    ((*OFF, "--enable-prefix-caching"), "0.14.1", ""),  # no prefix caching yet
    (OFF, "0.15.0", ""),  # prefix caching, but not by default
    ((*OFF, "--enable-prefix-caching"), "0.15.0", ALIGN),
    ((*OFF, "--enable-prefix-caching"), "0.27.1", ALIGN),
    (OFF, "0.27.1", ""),
    (OFF, "0.28.0", ALIGN),
    (OFF, "0.33.0", NEW_ALIGN),
    ((*OFF, "--no-enable-prefix-caching"), "0.33.0", ""),
    (OFF, "0.11.0", ""),  # ignores the option
    (BIG, "0.16.0", ""),
    (BIG, "0.17.1", BLOCK),
    (BIG, "0.26.0", BLOCK),
    (BIG, "0.27.0", ""),
    (("--kv-cache-dtype", "fp8"), "0.26.0", ""),
    (("--kv-cache-dtype", "fp8"), "0.32.0", ""),
    (("--max-num-seqs", "2000", "--gpu-memory-utilization", "0.6"), "0.32.0", "max_num_seqs (2000) exceeds available Mamba cache blocks (823)."),
    (("--max-num-seqs", "4000"), "0.32.0", "max_num_batched_tokens (2048) must be greater than or equal to max_num_seqs (4000)."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "version", "error"), REFUSED, ids=[f"{row[1]} {' '.join(row[0])}" for row in REFUSED]
)
def test_refused_options_depend_on_the_version(
    run_engine: RunEngine, words: tuple[str, ...], version: str, error: str
) -> None:
    log, code = run_engine(QWEN35, "--model", "/m", *words, version=version)
    assert (code, "Application startup complete." in log) == ((1, False) if error else (0, True)), log[-500:]
    assert error in log


@pytest.mark.parametrize(
    ("words", "version", "readings"),
    [
        ((), "0.27.1", {"prefix_caching": False, "mamba_cache_mode": None}),
        ((), "0.28.0", {"prefix_caching": True, "mamba_cache_mode": "align"}),
        (("--no-enable-chunked-prefill",), "0.11.0", {"chunked_prefill": True, "version": "0.11.0"}),
        (("--enable-prefix-caching",), "0.14.0", {"prefix_caching": False, "block_size": 1056}),
        (("--kv-cache-dtype", "fp8"), "0.32.0", {"block_size": 2096, "kv_cache_dtype": "fp8", "quantization": "fp8"}),
    ],
)
def test_defaults_by_version(
    run_engine: RunEngine, words: tuple[str, ...], version: str, readings: dict[str, Any]
) -> None:
    log, code = run_engine(QWEN35, "--model", "/m", *words, version=version)
    assert code == 0
    state = read_log(log, LOG)
    assert {name: state.value(name) for name in readings} == readings
    assert state.stage == "ready"


def test_a_truncated_weight_file_ends_the_start(run_engine: RunEngine, tmp_path: Path) -> None:
    for name in ("model.safetensors.index.json", *(f"model-{n:05d}-of-00014.safetensors" for n in range(1, 15))):
        (tmp_path / name).write_bytes(hub.file_content("Qwen/Qwen3.5-35B-A3B-FP8", name))
    (tmp_path / "model-00004-of-00014.safetensors").write_bytes(b"short")
    log, code = run_engine(QWEN35, "/m")
    assert code == 1 and "MetadataIncompleteBuffer" in log

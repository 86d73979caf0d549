"""`logs --file`: the state of a saved log, as a table and as JSON, and its exit codes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import commands

DATA = Path(__file__).parents[2] / "data"
#: facts of a hybrid model's start
FACTS = (
    "version", "chunked_prefill", "prefix_caching", "mamba_cache_mode", "block_size", "kv_cache_tokens", "ready",
)  # fmt: skip


def run_logs(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run("logs", *words, cwd=folder, env={**os.environ, "COLUMNS": "100"})


def log_path(case: str) -> str:
    return str(DATA / case / "server.log")


def facts(*values: object, failure: str | None = None) -> dict[str, object]:
    return {**dict(zip(FACTS, values, strict=True)), "failure": failure}


HYBRID_FAILURE = "prefix caching on this recurrent model needs chunked prefill, which is turned off."
TRUNCATED_FILE = "the model's file is truncated: a tensor lies beyond its end."


@pytest.mark.parametrize(
    ("case", "code", "expected"),
    [
        ("vllm-0.32.0/hybrid-chunked-on", 0, facts("0.32.0", True, True, "align", 256, 1525201, True)),
        ("vllm-0.32.0/hybrid-chunked-off", 1, facts("0.32.0", None, None, "align", None, None, False, failure=HYBRID_FAILURE)),
        ("llama-b10068/ready-lv4", 0, {"version": "b1-571d0d5", "slots": 2, "kv_cache_dtype": "q8_0", "chunked_prefill": True}),
        ("llama-b10434/half-gguf", 1, {"failure": TRUNCATED_FILE, "slots": None}),
        ("llama-b10434/unknown-flag", 1, {"failure": "unknown argument: --no-such-flag."}),
    ],
)  # fmt: skip
def test_json_state_of_a_log_has_values_and_evidence(
    tmp_path: Path, case: str, code: int, expected: dict[str, object]
) -> None:
    result = run_logs(tmp_path, "--file", log_path(case), "--state", "--json")
    data = json.loads(result.stdout)
    assert (result.returncode, {name: data[name] for name in expected}) == (code, expected), result.stderr
    if case.startswith("vllm"):
        assert set(data["evidence"]) >= {name for name in expected if data[name] is not None}


def test_table_of_the_state_fits_the_terminal(tmp_path: Path) -> None:
    result = run_logs(tmp_path, "--file", log_path("vllm-0.32.0/hybrid-chunked-on"), "--state")
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert rows["block_size"].split()[1] == "256"
    assert "enable_chunked_prefill=True" in rows["chunked_prefill"]
    assert rows["attention_backend"].split() == ["attention_backend", "unknown"]
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_log_without_a_start_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("nothing of an engine\n")
    result = run_logs(tmp_path, "--file", "other.log", "--state")
    assert result.returncode == 4
    assert "chunked_prefill" in result.stdout
    assert "unknown" in result.stdout


def test_last_lines_of_a_log_are_printed_unchanged(tmp_path: Path) -> None:
    result = run_logs(tmp_path, "--file", log_path("vllm-0.32.0/err-unknown-arg"), "--tail", "2")
    last_lines = ["            ...", "vllm: error: unrecognized arguments: --no-such-flag"]
    assert (result.returncode, result.stdout.splitlines()) == (0, last_lines)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--file", "missing.log", "--state"), "missing.log"),
        (("--file", "a", "--host", "b"), "pass either --host NAME or --file PATH."),
        (("--file", log_path("llama-b10068/ready"), "--engine", "llamacpp"), "unknown engine 'llamacpp'; the engines are vllm, "),
        (("--host", "spark1", "--engine", "vllm"), "--engine: applies only to --file"),
    ],
    ids=["missing file", "file and host", "unknown engine", "engine of a host"],
)  # fmt: skip
def test_invalid_options_are_refused(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    result = run_logs(tmp_path, *words)
    assert result.returncode == 5 and error in result.stderr


def test_engine_of_a_log_without_its_beginning_can_be_given(tmp_path: Path) -> None:
    raw = (DATA / "llama-b10068/ready/server.log").read_bytes()
    (tmp_path / "end.log").write_bytes(raw[raw.index(b"load_model: initializing") :])
    result = run_logs(tmp_path, "--file", "end.log", "--state", "--engine", "llama_cpp")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert (result.returncode, rows["slots"][0], rows["max_model_len"][0]) == (0, "2", "2,048")
    assert run_logs(tmp_path, "--file", "end.log", "--state").returncode == 4

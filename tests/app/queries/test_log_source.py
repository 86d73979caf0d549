"""`logs --file`: the state of a saved log, as a table and as JSON, and its exit codes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import commands

DATA = Path(__file__).parents[2] / "data" / "vllm-0.32.0"
NAMED = (
    "version", "chunked_prefill", "prefix_caching", "mamba_cache_mode", "block_size", "kv_cache_tokens", "ready",
    "failure",
)  # fmt: skip


def run_logs(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run("logs", *words, cwd=folder, env={**os.environ, "COLUMNS": "100"})


def log_path(case: str) -> str:
    return str(DATA / case / "server.log")


@pytest.mark.parametrize(
    ("case", "code", "wanted"),
    [
        ("hybrid-chunked-on", 0, ["0.32.0", True, True, "align", 256, 1525201, True, None]),
        (
            "hybrid-chunked-off",
            1,
            [
                *("0.32.0", None, None, "align", None, None, False),
                "prefix caching on this recurrent model needs chunked prefill, which is turned off.",
            ],
        ),
    ],
)
def test_the_state_as_json_has_values_null_and_evidence(
    tmp_path: Path, case: str, code: int, wanted: list[object]
) -> None:
    result = run_logs(tmp_path, "--file", log_path(case), "--state", "--json")
    data = json.loads(result.stdout)
    assert (result.returncode, [data[name] for name in NAMED]) == (code, wanted), result.stderr
    assert set(data["evidence"]) >= {name for name in NAMED if data[name] is not None}


def test_the_state_as_a_table_is_cut_at_the_terminals_width(tmp_path: Path) -> None:
    result = run_logs(tmp_path, "--file", log_path("hybrid-chunked-on"), "--state")
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert rows["block_size"].split()[1] == "256"
    assert "enable_chunked_prefill=True" in rows["chunked_prefill"]
    assert rows["attention_backend"].split() == ["attention_backend", "unknown"]
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_a_log_without_a_start_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("nothing of an engine\n")
    result = run_logs(tmp_path, "--file", "other.log", "--state")
    assert result.returncode == 4
    assert "chunked_prefill" in result.stdout
    assert "unknown" in result.stdout


def test_without_state_the_end_of_the_log_is_printed_as_it_is(tmp_path: Path) -> None:
    result = run_logs(tmp_path, "--file", log_path("err-unknown-arg"), "--tail", "2")
    assert (result.returncode, result.stdout.splitlines()) == (
        0,
        ["            ...", "vllm: error: unrecognized arguments: --no-such-flag"],
    )


def test_what_can_not_be_read_is_refused(tmp_path: Path) -> None:
    assert run_logs(tmp_path, "--file", "none.log", "--state").returncode == 5
    both = run_logs(tmp_path, "--file", "a", "--host", "b")
    assert (both.returncode, both.stderr.strip()) == (5, "pass either --host NAME or --file PATH.")


@pytest.mark.parametrize(
    ("case", "code", "wanted"),
    [
        ("b10068/ready-lv4", 0, {"version": "b1-571d0d5", "slots": 2, "kv_cache_dtype": "q8_0", "chunked_prefill": True}),
        ("b10434/half-gguf", 1, {"failure": "the model's file is truncated: a tensor lies beyond its end.", "slots": None}),
        ("b10434/unknown-flag", 1, {"failure": "unknown argument: --no-such-flag."}),
    ],
)  # fmt: skip
def test_the_engine_of_a_saved_log_is_recognised(
    tmp_path: Path, case: str, code: int, wanted: dict[str, object]
) -> None:
    result = run_logs(tmp_path, "--file", str(DATA.parent / f"llama-{case}" / "server.log"), "--state", "--json")
    data = json.loads(result.stdout)
    assert (result.returncode, {name: data[name] for name in wanted}) == (code, wanted), result.stderr


def test_the_engine_of_a_log_without_its_beginning_can_be_said(tmp_path: Path) -> None:
    raw = (DATA.parent / "llama-b10068" / "ready" / "server.log").read_bytes()
    (tmp_path / "end.log").write_bytes(raw[raw.index(b"load_model: initializing") :])
    result = run_logs(tmp_path, "--file", "end.log", "--state", "--engine", "llama_cpp")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert (result.returncode, rows["slots"][0], rows["max_model_len"][0]) == (0, "2", "2,048")
    assert run_logs(tmp_path, "--file", "end.log", "--state").returncode == 4
    other = run_logs(tmp_path, "--file", "end.log", "--engine", "llamacpp")
    assert (other.returncode, other.stderr.strip()) == (
        5,
        "--engine: unknown engine 'llamacpp'; the engines are vllm, llama_cpp, sglang, openai.",
    )
    host = run_logs(tmp_path, "--host", "spark1", "--engine", "vllm")
    assert host.returncode == 5 and host.stderr.startswith("--engine: applies only to --file")

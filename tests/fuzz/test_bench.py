"""Damaged results, reports of `vllm bench serve`, data sets with prompts, and the state of an experiment."""

import json
from pathlib import Path

import pytest

from sparkwright.app import experiment_folder
from sparkwright.bench import bench_options, results_file, vllm_results
from sparkwright.html import experiment_page
from tests.bench import made
from tests.fuzz.harness import ROUNDS, damaged_texts, damaged_values, feed, feed_json, via_file

VLLM = {
    "date": "20261102-081451", "model_id": "Qwen/Qwen3-8B", "num_prompts": 100, "request_rate": "inf",
    "max_concurrency": 8, "duration": 12.5, "completed": 100, "failed": 0, "total_input_tokens": 102400,
    "total_output_tokens": 12800, "output_throughput": 1024.0, "median_ttft_ms": 210.5, "p99_tpot_ms": 22.1,
    "itls": [[0.01, 0.011, 0.5], [0.012]], "ttfts": [0.2, 0.21],
}  # fmt: skip
PRINTED = b"""============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  12.50
Total generated tokens:                  12800
Median TTFT (ms):                        210.50
P99 ITL (ms):                            22.10
itls: [[0.01, 0.011, 0.5], [0.012],]
"""
TURNS = [{"from": "human", "value": "Tell me about Paris. " * 20}, {"from": "gpt", "value": "It is a city. " * 20}]
SHARE_GPT = [{"id": "a", "conversations": TURNS}, {"id": "b", "conversation": TURNS}]
LINES = b'{"prompt": "Tell me about Paris.", "output_tokens": 128}\n{"prompt": "x", "max_tokens": 4}\n\n"Only a text"\n'


@pytest.fixture(scope="module")
def results() -> list[object]:
    return [json.loads(results_file.to_json(result)) for result in (made.make_ab_results(), made.make_sweep_results())]


def test_results(results: list[object], tmp_path: Path) -> None:
    path = tmp_path / "results.json"

    def read() -> None:
        results = results_file.read_results(path)
        results_file.to_csv(results)
        results_file.to_json(results).encode()

    feed_json(via_file(path, read), results)


def test_page_of_results(results: list[object], tmp_path: Path) -> None:
    """Few cases, because a page with its plots takes half a second."""
    path = tmp_path / "results.json"
    read = via_file(path, lambda: experiment_page.render_page(results_file.read_results(path)))
    feed(lambda value: read(json.dumps(value).encode()), damaged_values(results, rounds=ROUNDS // 40))


def test_reports_of_vllm(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    read = via_file(path, lambda: results_file.to_json(vllm_results.read_results(path)).encode())
    feed_json(read, [VLLM])
    feed(read, damaged_texts([PRINTED]))


def test_nested_lists_in_reports_of_vllm(tmp_path: Path) -> None:
    path = tmp_path / "bench.txt"
    cases = [PRINTED + b"itls: " + b"[" * 3000, b"[" * 3000, PRINTED + b"itls: " + b"[" * 3000 + b"]" * 3000]
    feed(via_file(path, lambda: vllm_results.read_results(path)), iter(cases))


def test_prompts_of_share_gpt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    feed_json(via_file(path, lambda: bench_options.read_prompts(path, 10)), [SHARE_GPT])


def test_prompts_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    feed(via_file(path, lambda: bench_options.read_prompts(path, 10)), damaged_texts([LINES]))


def test_state_of_an_experiment(tmp_path: Path) -> None:
    folder = tmp_path / experiment_folder.RESULTS_FOLDER / "x"
    folder.mkdir(parents=True)

    def read() -> None:
        (folder / results_file.JSON_FILE).write_text("{}")
        experiment_folder.ExperimentFolder.open(tmp_path, "x", start_over=False)
        assert {item.name for item in tmp_path.iterdir()} == {experiment_folder.RESULTS_FOLDER}

    state = {"series": "x-20261102T081451", "finished": True}
    feed_json(via_file(folder / experiment_folder.STATE_FILE, read), [state])

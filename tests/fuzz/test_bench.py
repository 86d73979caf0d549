"""Measurements of others: results, what `vllm bench serve` wrote, data sets with prompts, an experiment's own file."""

import json
from collections.abc import Callable
from pathlib import Path

from sparkwright.app import experiment_folder
from sparkwright.bench import bench_options, results_file, vllm_results
from sparkwright.html import experiment_page
from tests.bench import made
from tests.fuzz.harness import ROUNDS, damaged_texts, damaged_values, feed

VLLM = {
    "date": "20261102-081451",
    "model_id": "Qwen/Qwen3-8B",
    "num_prompts": 100,
    "request_rate": "inf",
    "max_concurrency": 8,
    "duration": 12.5,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 102400,
    "total_output_tokens": 12800,
    "output_throughput": 1024.0,
    "median_ttft_ms": 210.5,
    "p99_tpot_ms": 22.1,
    "itls": [[0.01, 0.011, 0.5], [0.012]],
    "ttfts": [0.2, 0.21],
}
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


def via_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def one(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return one


def test_results(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        results = results_file.read_results(path)
        results_file.to_csv(results)
        results_file.to_json(results).encode()

    take = via_file(tmp_path / "results.json", read)
    examples = [
        json.loads(results_file.to_json(example)) for example in (made.make_ab_results(), made.make_sweep_results())
    ]
    feed(lambda value: take(json.dumps(value).encode()), damaged_values(examples))
    feed(take, damaged_texts([json.dumps(example).encode() for example in examples]))


def test_the_page_of_results(tmp_path: Path) -> None:
    """Few cases: a page with its plots takes half a second."""
    take = via_file(
        tmp_path / "results.json", lambda path: experiment_page.render_page(results_file.read_results(path))
    )
    examples = [
        json.loads(results_file.to_json(example)) for example in (made.make_ab_results(), made.make_sweep_results())
    ]
    feed(lambda value: take(json.dumps(value).encode()), damaged_values(examples, rounds=ROUNDS // 40))


def test_what_vllm_measured(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        results_file.to_json(vllm_results.read_results(path)).encode()

    take = via_file(tmp_path / "bench.json", read)
    feed(lambda value: take(json.dumps(value).encode()), damaged_values([VLLM]))
    feed(take, damaged_texts([json.dumps(VLLM).encode(), PRINTED]))


def test_lists_within_lists_are_refused(tmp_path: Path) -> None:
    take = via_file(tmp_path / "bench.txt", vllm_results.read_results)
    feed(take, iter([PRINTED + b"itls: " + b"[" * 3000, b"[" * 3000, PRINTED + b"itls: " + b"[" * 3000 + b"]" * 3000]))


def test_prompts_of_share_gpt(tmp_path: Path) -> None:
    take = via_file(tmp_path / "prompts.json", lambda path: bench_options.read_prompts(path, 10))
    feed(lambda value: take(json.dumps(value).encode()), damaged_values([SHARE_GPT]))
    feed(take, damaged_texts([json.dumps(SHARE_GPT).encode()]))


def test_prompts_as_lines(tmp_path: Path) -> None:
    feed(
        via_file(tmp_path / "prompts.jsonl", lambda path: bench_options.read_prompts(path, 10)), damaged_texts([LINES])
    )


def test_the_file_of_an_experiment(tmp_path: Path) -> None:
    folder = tmp_path / experiment_folder.RESULTS_FOLDER / "x"
    folder.mkdir(parents=True)

    def read(path: Path) -> None:
        (folder / results_file.JSON_FILE).write_text("{}")
        experiment_folder.ExperimentFolder.open(tmp_path, "x", again=False)
        assert {item.name for item in tmp_path.iterdir()} == {experiment_folder.RESULTS_FOLDER}

    take = via_file(folder / experiment_folder.STATE_FILE, read)
    state = {"series": "x-20261102T081451", "finished": True}
    feed(lambda value: take(json.dumps(value).encode()), damaged_values([state]))
    feed(take, damaged_texts([json.dumps(state).encode()]))

"""The bench commands against a server that records its requests, without any host."""

import json
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from invoke.tasks import Task

from sparkwright.app import experiments
from sparkwright.cli import bench
from sparkwright.errors import Failed
from tests import published
from tests.measure.exact_server import ExactServer, Schedule, serving

PLAN = Schedule(first_s=0.02, gap_s=0.004, chunks=60)


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def run_experiment(command: str, server: ExactServer, **changed: Any) -> int:
    """Run a command with its default options, as Invoke passes them."""
    options = next(options for name, options, _ in bench.COMMANDS if name == command)
    defaults = {name.replace("-", "_"): default for name, default, _ in (*bench.COMMON_OPTIONS, *options)}
    return experiments.run(command, {**defaults, "url": server.url, **changed})


def run_task(task: Task[Any], **options: Any) -> int:
    try:
        task.body(None, **options)
    except Exit as error:
        return int(error.code or 0)
    return 0


def load_results(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((Path("results") / name / "results.json").read_text())
    return data


@pytest.mark.parametrize(
    ("text", "numbers"), [("1,3", (1, 3)), ("1..8", (1, 2, 4, 8)), ("1..6", (1, 2, 4, 6)), ("2..2", (2,)), ("", ())]
)
def test_concurrency_is_a_list_or_a_doubling_range(text: str, numbers: tuple[int, ...]) -> None:
    assert experiments.build_bench_options("serve", {"concurrency": text}).concurrency == numbers


def test_openai_compatible_server_is_measured_from_the_laptop(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(PLAN) as server:
        code = run_experiment(
            "serve", server, concurrency="1,3", requests=3, output_tokens=12, prompt_tokens=64, name="mine"
        )
        generated = server.generated
    assert code == 0
    data = load_results("mine")
    assert [cell["figures"]["output_tokens"] for cell in data["cells"]] == [36, 36]
    assert generated == 72 + 2 * (1 + 1 + 8)
    assert (data["measured_from"], data["arms"][0]["title"]) == ("laptop", f"m at {server.url}")
    output = capsys.readouterr()
    assert "serve c=3" in output.out
    assert "measuring: 3 requests, 3 at a time" in output.err


def test_interrupted_experiment_continues_and_a_finished_one_starts_over(working_folder: Path) -> None:
    with serving(PLAN) as server:
        options = {"concurrency": "1,2", "requests": 2, "output_tokens": 4, "prompt_tokens": 20, "name": "x"}
        run_experiment("serve", server, **options)
        first = load_results("x")
        state = working_folder / "results/x/experiment.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "finished": False}))
        (working_folder / "results/x/results.json").write_text(json.dumps({**first, "cells": first["cells"][:1]}))
        before = len(server.bodies)
        run_experiment("serve", server, **options)
        assert len(server.bodies) - before == 2 + 3
        assert load_results("x")["cells"][0] == first["cells"][0]
        run_experiment("serve", server, **options)
        assert load_results("x")["series"] != first["series"] or load_results("x")["cells"] != first["cells"]
    assert [path.name for path in (working_folder / "results/x/before").glob("*.json")] == [f"{first['series']}.json"]


def test_json_output_is_the_results_only(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(PLAN) as server:
        run_experiment("smoke", server, prompt_tokens=100, output_tokens=10, repeat=2, json=True)
    data = json.loads(capsys.readouterr().out)
    assert [cell["repetition"] for cell in data["cells"]] == [1, 2]


def test_inconclusive_measurement_exits_with_4() -> None:
    with serving(Schedule(first_s=0.01, gap_s=0.002, chunks=60, ghost=9)) as server:
        code = run_experiment("serve", server, concurrency="1", requests=2, output_tokens=4, name="x")
        assert code == 4
        assert load_results("x")["cells"][0]["verdict"] == "inconclusive"


def test_results_are_compared_with_those_of_vllm(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(PLAN) as server:
        run_experiment("serve", server, concurrency="2", requests=2, output_tokens=12, prompt_tokens=64, name="ours")
    (working_folder / "theirs.txt").write_text(
        "Maximum request concurrency:  2\nMedian TTFT (ms):   20.00\nOutput token throughput (tok/s):  400.00\n"
    )
    assert run_task(bench.import_results, file="theirs.txt") == 0
    capsys.readouterr()
    assert run_task(bench.compare, first="theirs", second="ours", json=True) == 0
    out = capsys.readouterr().out
    assert published.check_output("bench.compare", out) == []
    rows = {row["figure"]: row for row in json.loads(out)}
    assert rows["output tok/s"]["first"] == 400.0
    assert rows["TTFT p50 ms"]["second"] == load_results("ours")["cells"][0]["figures"]["ttft_p50_ms"]


def test_report_of_another_file_leaves_the_results_beside_it(working_folder: Path) -> None:
    published_result = {"median_ttft_ms": 90.0, "duration": 1.0, "completed": 1}
    (working_folder / "theirs.json").write_text(json.dumps(published_result))
    (working_folder / "results.json").write_text("mine")
    experiments.report("theirs.json", json=False)
    assert (working_folder / "results.json").read_text() == "mine"
    assert {path.name for path in working_folder.iterdir()} == {"theirs.json", "results.json"}


def test_missing_key_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Schedule(first_s=0.01, gap_s=0.002, api_key="sesame")) as server:
        with pytest.raises(Failed) as error:
            run_experiment("smoke", server)
        assert error.value.fix == "Set VLLM_API_KEY to the server's key."
        monkeypatch.setenv("VLLM_API_KEY", "sesame")
        assert run_experiment("smoke", server, prompt_tokens=50, output_tokens=4) == 0


@pytest.mark.parametrize(
    ("file", "name"), [("...json", ""), ("theirs.txt", ".hidden"), ("theirs.txt", "../x"), ("theirs.txt", "/x")]
)
def test_import_outside_the_results_folder_is_refused(working_folder: Path, file: str, name: str) -> None:
    (working_folder / file).write_text("Maximum request concurrency:  2\nMedian TTFT (ms):   20.00\n")
    before = set(working_folder.parent.rglob("*"))
    assert run_task(bench.import_results, file=file, name=name) == 5
    assert set(working_folder.parent.rglob("*")) == before


@pytest.mark.parametrize("json", [False, True])
def test_control_characters_of_a_server_are_escaped(capsys: pytest.CaptureFixture[str], json: bool) -> None:
    """The server's name is in every table."""
    plan = Schedule(first_s=0.01, gap_s=0.002, chunks=20, model="m\x1b]52;c;aGk=\x07\x9b")
    with serving(plan) as server:
        run_experiment("smoke", server, prompt_tokens=50, output_tokens=4, name="odd", json=json)
    output = capsys.readouterr()
    assert load_results("odd")["arms"][0]["title"].startswith("m\\x1b]52;c;aGk=\\x07\\x9b at ")
    assert not set("\x1b\x07\x9b") & set(output.out + output.err)

"""The lab on the sandbox: what runs is measured, arms are started fresh, and what served before serves again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.sandbox import control
from tests import published
from tests.e2e.conftest import SandboxProject, sandbox_project

SMALL = ("--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6")


def read_results(project: SandboxProject, name: str) -> dict[str, Any]:
    experiment: dict[str, Any] = json.loads((project.root / "results" / name / "results.json").read_text())
    return experiment


def mark_unfinished(project: SandboxProject, name: str) -> None:
    """Mark the experiment as unfinished, as a laptop leaves it that was gone before the end."""
    path = project.root / "results" / name / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finished": False}))


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[SandboxProject, str]]:
    """A project whose sandbox serves, and the Id of what serves: each test leaves it as it was."""
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as value:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        # a release that refuses what the sweep's first arm asks for
        value.edit("recipes/qwen3.5-35b.yml", "vllm-openai:v0.32.0", "vllm-openai:cu130-nightly")
        value.deployed()
        yield value, value.serving()


def test_what_runs_is_measured_as_it_is(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    result = project.run(
        "bench.serve", "--host", "sandbox", "--requests", "2", "--concurrency", "1,2", "--output-tokens", "6"
    )
    assert result.code == 0, result.out + result.err
    assert "simulated figures, not real measurements" in result.out
    experiment = read_results(project, "serve-sandbox")
    assert [(cell["load"]["concurrency"], cell["figures"]["output_tokens"]) for cell in experiment["cells"]] == [
        (1, 12),
        (2, 12),
    ]
    assert experiment["arms"][0]["effective"]["chunked_prefill"] is True
    assert (project.root / "results/serve-sandbox/report.html").exists()
    assert project.serving() == server
    arena = project.run(
        "bench.smoke", "--host", "sandbox", "--prompt-tokens", "100", "--output-tokens", "4", "--spark-arena"
    )
    assert "| pp100 |" in arena.out and "| tg4 |" in arena.out
    listed = project.run("bench.list").out
    assert "serve-sandbox" in listed and "smoke-sandbox" in listed


def test_a_flag_that_does_nothing_is_found_out_before_anything_is_measured(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    result = project.run(
        "bench.ab", "--host", "sandbox", "--flag", "enable-chunked-prefill", "--name", "nothing", *SMALL
    )
    assert result.code == 0, result.out + result.err
    assert "the flag does nothing" in result.out
    assert read_results(project, "nothing")["cells"] == []
    assert project.serving() == server
    assert project.containers() == ["qwen35 running"]
    assert project.deploy().recap["changed"] == 0


def test_two_arms_are_measured_there_and_back_and_the_server_is_put_back(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    result = project.run("bench.ab", "--host", "sandbox", "--flag", "chunked-prefill", "--json", *SMALL)
    assert result.code == 0, result.out + result.err
    measured = [
        event["data"]["cell"]["arm"]
        for event in result.events()
        if event.get("module") == "bench" and event["event"] == "task_finished"
    ]
    assert measured == ["a", "b", "b", "a"] and published.check_output("bench.ab", result.out) == []
    experiment = read_results(project, "ab-sandbox")
    assert [arm["effective"]["chunked_prefill"] for arm in experiment["arms"]] == [True, False]
    assert {arm["effective"]["prefix_caching"] for arm in experiment["arms"]} == {False}
    assert len({arm["image"] for arm in experiment["arms"]}) == 1
    assert any("enable_chunked_prefill" in note for note in experiment["notes"])
    assert result.task("Check that previous server generates")["status"] == "ok"
    assert project.serving() == server
    assert project.containers() == ["qwen35 running"]


def test_a_sweep_leaves_out_what_the_engine_would_refuse_and_never_measures_a_cell_twice(
    served: tuple[SandboxProject, str],
) -> None:
    project, server = served
    command = ("bench.sweep", "--host", "sandbox", "--max-num-batched-tokens", "512,4096", *SMALL)
    first = project.run(*command)
    assert first.code == 0, first.out + first.err
    experiment = read_results(project, "sweep-sandbox")
    assert experiment["arms"][0]["refused"]["rule"] == "block-over-budget"
    assert "arm 512" in first.out and "not started" in first.out
    assert [cell["arm"] for cell in experiment["cells"]] == ["4096"]
    assert project.serving() == server
    mark_unfinished(project, "sweep-sandbox")
    second_run = project.run(*command)
    assert second_run.code == 0
    assert "Stop server, keep it for later" not in second_run.out
    assert read_results(project, "sweep-sandbox")["cells"] == experiment["cells"]


def test_a_sweep_over_two_flags_starts_each_pair_once(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    axes = ("--flag", "max-num-seqs", "--values", "2,4", "--flag", "compilation-config.mode", "--values", "0,unset")
    result = project.run("bench.sweep", "--host", "sandbox", *axes, "--name", "grid", *SMALL)
    assert result.code == 0, result.out + result.err
    experiment = read_results(project, "grid")
    assert [cell["arm"] for cell in experiment["cells"]] == ["2-0", "2-unset", "4-0", "4-unset"]
    assert [arm["flags"].get("compilation-config") for arm in experiment["arms"]] == [
        {"mode": 0},
        None,
        {"mode": 0},
        None,
    ]
    assert "most output with" in result.out
    assert "over max-num-seqs and compilation-config.mode" in (project.root / "results/grid/report.html").read_text()
    assert project.serving() == server


def test_a_flag_that_no_engine_has_stops_a_sweep_before_the_server(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    result = project.run("bench.sweep", "--host", "sandbox", "--flag", "max-num-batched-tokenz", "--values", "1,2")
    assert result.code == 5 and "max-num-batched-tokens" in result.out + result.err, result.out + result.err
    assert project.serving() == server


def test_an_arm_that_dies_is_left_out_and_the_server_comes_back(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    control.set_fault(project.sandbox, "oom")
    result = project.run(
        "bench.sweep", "--host", "sandbox", "--max-num-batched-tokens", "8192", "--name", "dies", *SMALL
    )
    assert result.code == 1, result.out + result.err
    assert "41.30 of 119.70 GiB were free" in read_results(project, "dies")["arms"][0]["failed"]
    control.set_fault(project.sandbox, None)
    assert project.containers() == ["qwen35 running"]
    assert project.serving() == server


def test_a_lab_that_was_cut_off_is_finished_by_the_same_command(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    command = ("bench.sweep", "--host", "sandbox", "--max-num-batched-tokens", "4096,8192", "--name", "cut", *SMALL)
    program = [sys.executable, "-c", "from sparkwright.cli import main; main()", *command, "--json"]
    laptop = subprocess.Popen(program, cwd=project.root, stdout=subprocess.PIPE, text=True)
    assert laptop.stdout is not None
    for line in laptop.stdout:
        if '"event": "task_started"' in line and '"name": "Measure 8192' in line:
            lock = project.sandbox / "home/.local/state/sparkwright/lock"
            os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
            break
    assert "was interrupted" in laptop.communicate()[0]
    result = project.run(*command, "--json")
    assert result.code == 0, result.out + result.err
    started_tasks = [event["name"] for event in result.events() if event["event"] == "task_started"]
    assert [name for name in started_tasks if name.startswith("Measure")] == ["Measure 8192: 2 requests, 2 at a time"]
    assert [cell["arm"] for cell in read_results(project, "cut")["cells"]] == ["4096", "8192"]
    assert project.serving() == server
    assert project.containers() == ["qwen35 running"]


def test_an_experiment_is_for_one_host_and_bad_orders_touch_nothing(project: SandboxProject) -> None:
    for command, text in (
        (("bench.ab", "--host", "sandbox"), "nothing to compare: pass"),
        (("bench.serve",), "pass either --host NAME or --url"),
        (
            ("bench.sweep", "--host", "sandbox", "--max-num-batched-tokens", "many"),
            "must be numbers separated by commas",
        ),
        (("bench.serve", "--url", "127.0.0.1:8000"), "is not a base URL"),
        (("bench.compare", "nothing", "else"), "no file"),
    ):
        result = project.run(*command)
        assert (result.code, text in result.err) == (5, True), result.err
    assert not Path(project.root / "results" / "ab-sandbox").exists()

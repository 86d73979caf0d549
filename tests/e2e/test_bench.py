"""Measurements on the sandbox: of the running server, and of arms that replace it until the end of the experiment."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests import published
from tests.e2e.conftest import SandboxProject, sandbox_project, wait_for_line

SMALL = ("--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6")


def read_results(project: SandboxProject, name: str) -> dict[str, Any]:
    experiment: dict[str, Any] = json.loads((project.root / "results" / name / "results.json").read_text())
    return experiment


def mark_unfinished(project: SandboxProject, name: str) -> None:
    """Mark the experiment as unfinished, as after a lost connection."""
    path = project.root / "results" / name / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finished": False}))


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[SandboxProject, str]]:
    """A project with a server, and the container's Id. Each test leaves the server unchanged."""
    with sandbox_project() as value:
        # a release that refuses the first arm of the sweep
        value.edit("recipes/qwen3.5-35b.yml", "vllm-openai:v0.32.0", "vllm-openai:cu130-nightly")
        value.deployed()
        yield value, value.serving()


def test_the_running_server_is_measured(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    options = ("--requests", "2", "--concurrency", "1,2", "--output-tokens", "6")
    result = project.run("bench.serve", "--host", "sandbox", *options)
    assert result.code == 0, result.out + result.err
    assert "simulated figures, not real measurements" in result.out
    experiment = read_results(project, "serve-sandbox")
    cells = [(cell["load"]["concurrency"], cell["figures"]["output_tokens"]) for cell in experiment["cells"]]
    assert cells == [(1, 12), (2, 12)]
    assert experiment["arms"][0]["effective"]["chunked_prefill"] is True
    assert (project.root / "results/serve-sandbox/report.html").exists()
    assert project.serving() == server
    arena_options = ("--prompt-tokens", "100", "--output-tokens", "4", "--spark-arena")
    arena = project.run("bench.smoke", "--host", "sandbox", *arena_options)
    assert "| pp100 |" in arena.out and "| tg4 |" in arena.out
    assert "0 of 1 are finished" in arena.out and " tok/s over 3 requests, TTFT" in arena.out
    listed = project.run("bench.list").out
    assert re.search(r"(?m)^serve-sandbox +serve +sandbox +2 ", listed)
    assert re.search(r"(?m)^smoke-sandbox +smoke +sandbox +1 ", listed)


def test_another_server_at_the_port_is_not_measured(served: tuple[SandboxProject, str]) -> None:
    with sandbox_project() as empty_project:
        empty_project.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {served[0].port}")
        result = empty_project.run("bench.smoke", "--host", "sandbox")
        assert result.code == 1, result.out + result.err
        assert "the container qwen35 is not running on this host" in result.out + result.err
        assert "Check that it generates" not in result.out
        assert "report.html" not in result.out
        written = {path.name for path in (empty_project.root / "results/smoke-sandbox").iterdir()}
        assert written == {"play.yml", "experiment.json"}
        assert empty_project.run("bench.list").out == "no experiments with results yet.\n"
        assert empty_project.run("bench.list", "--json").out == ""


def test_a_flag_without_effect_is_reported_and_not_measured(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    options = ("--flag", "enable-chunked-prefill", "--name", "nothing", *SMALL)
    result = project.run("bench.ab", "--host", "sandbox", *options)
    assert result.code == 0, result.out + result.err
    assert "the flag does nothing" in result.out
    assert read_results(project, "nothing")["cells"] == []
    assert project.serving() == server
    assert project.containers() == ["qwen35 running"]
    assert project.deploy().recap["changed"] == 0


def test_two_arms_are_measured_in_both_orders_and_the_server_is_restored(served: tuple[SandboxProject, str]) -> None:
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


def test_a_sweep_skips_arms_that_the_engine_refuses_and_measures_no_cell_twice(
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
    assert [arm["flags"].get("compilation-config") for arm in experiment["arms"]] == [{"mode": 0}, None] * 2
    assert "highest throughput with" in result.out
    assert "over max-num-seqs and compilation-config.mode" in (project.root / "results/grid/report.html").read_text()
    assert project.serving() == server


def test_an_unknown_flag_is_refused_while_the_server_runs(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    result = project.run("bench.sweep", "--host", "sandbox", "--flag", "max-num-batched-tokenz", "--values", "1,2")
    assert result.code == 5 and "max-num-batched-tokens" in result.out + result.err, result.out + result.err
    assert project.serving() == server


def test_a_crashing_arm_is_left_out_and_the_server_is_restored(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    options = ("--max-num-batched-tokens", "8192", "--name", "dies", *SMALL)
    with project.fault("oom"):
        result = project.run("bench.sweep", "--host", "sandbox", *options)
    assert result.code == 1, result.out + result.err
    assert "41.30 of 119.70 GiB were free" in read_results(project, "dies")["arms"][0]["failed"]
    assert project.containers() == ["qwen35 running"]
    assert project.serving() == server


def test_the_same_command_finishes_an_interrupted_sweep(served: tuple[SandboxProject, str]) -> None:
    project, server = served
    command = ("bench.sweep", "--host", "sandbox", "--max-num-batched-tokens", "4096,8192", "--name", "cut", *SMALL)
    laptop = project.start(*command, "--json")
    wait_for_line(laptop, '"name": "Measure 8192')
    os.kill(json.loads((project.state.path / "lock").read_text())["pid"], signal.SIGKILL)
    assert "was interrupted" in laptop.communicate()[0]
    result = project.run(*command, "--json")
    assert result.code == 0, result.out + result.err
    measured = [name for name in result.started_tasks() if name.startswith("Measure")]
    assert measured == ["Measure 8192: 2 requests, 2 at a time"]
    assert [cell["arm"] for cell in read_results(project, "cut")["cells"]] == ["4096", "8192"]
    assert project.serving() == server
    assert project.containers() == ["qwen35 running"]

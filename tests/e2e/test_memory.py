"""The memory of a server on the sandbox: its budget, its measurements, and the promised load."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.engines.budget import Budget
from sparkwright.sandbox import control
from sparkwright.sandbox.memory import TOTAL_BYTES
from sparkwright.sandbox.serving.process import HOST_MEMORY_BYTES
from sparkwright.units import GIB
from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project
from tests.e2e.test_host_saved import guard_header
from tests.waiting import wait_until

RECIPE = "recipes/qwen3.5-35b.yml"
FIT_CHECK = "Check that it fits in memory"


@pytest.fixture(scope="module")
def deployed() -> Iterator[tuple[SandboxProject, CommandResult]]:
    with sandbox_project() as project:
        project.edit(RECIPE, "expect:\n", "expect:\n  load: {context: 2048, streams: 2}\n")
        result = project.deploy()
        assert result.proved, result.out[-3000:]
        yield project, result


@pytest.fixture
def served(deployed: tuple[SandboxProject, CommandResult]) -> SandboxProject:
    return deployed[0]


@pytest.fixture
def first_deploy(deployed: tuple[SandboxProject, CommandResult]) -> CommandResult:
    return deployed[1]


def host_side_row(budget: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in budget["rows"] if row["name"] == "host's side")


def test_a_first_deploy_assumes_host_memory_and_the_next_plan_uses_the_measurement(
    served: SandboxProject, first_deploy: CommandResult
) -> None:
    assumed = host_side_row(first_deploy.task(FIT_CHECK)["data"]["budget"])
    assert assumed["assumed"] and assumed["size_bytes"] == 7 * 2**30
    with served.restored_files():
        served.edit(RECIPE, "max-num-seqs: 8", "max-num-seqs: 4")
        plan = served.run("plan", "--host", "sandbox", "--json")
        result = served.run("plan", "--host", "sandbox")
    budget = plan.task(FIT_CHECK)["data"]["budget"]
    known = host_side_row(budget)
    assert not known["assumed"] and "with this image, but another model or other arguments" in known["source"]
    assert known["size_bytes"] == pytest.approx(HOST_MEMORY_BYTES, rel=0.02)
    assert budget["total_bytes"] == pytest.approx(TOTAL_BYTES, rel=0.001)
    table = Budget.of_json(budget).lines()
    assert all(any(row.strip() in line for line in result.out.splitlines()) for row in table[1:-1]), result.out


def test_history_and_doctor_show_the_measured_memory(served: SandboxProject) -> None:
    memory = served.history()[0]["memory"]
    assert memory["host_bytes"] == pytest.approx(HOST_MEMORY_BYTES, rel=0.02) and memory["cold"]
    assert memory["lowest_bytes"] <= memory["after_bytes"] < memory["before_bytes"]
    text = served.run("history", "--host", "sandbox").out
    assert "GiB available during the start (cold)" in text and "survives 2048 x 2: " in text
    doctor = served.run("doctor", "--host", "sandbox", "--json").events()[0]
    finding = next(finding for finding in doctor["findings"] if finding["check"] == "memory budget")
    assert finding["verdict"] == "ok" and "needs 107.2 GiB; " in finding["evidence"]
    assert not host_side_row(doctor["budget"])["assumed"]


def test_the_promised_load_is_proved_once_per_server(served: SandboxProject, first_deploy: CommandResult) -> None:
    proof = first_deploy.task("Test the promised load")["data"]
    expected = [(256, 1), (512, 1), (1024, 1), (2048, 1), (2048, 2)]
    assert [(rung["context"], rung["streams"]) for rung in proof["rungs"]] == expected
    assert all(rung["lowest_bytes"] > 0 and rung["ttft_s"] is not None for rung in proof["rungs"])
    second_run = served.run("restart", "--host", "sandbox", "--json")
    assert second_run.proved, second_run.out[-2000:]
    assert second_run.task("Test the promised load")["data"]["kept"]


def test_a_share_too_large_is_refused_with_the_largest_that_fits(served: SandboxProject) -> None:
    before = served.serving()
    with served.restored_files():
        served.edit(RECIPE, "utilization: 0.85", "utilization: 0.95")
        result = served.deploy()
    assert result.code == 5
    failed = result.task(FIT_CHECK)
    assert "set gpu-memory-utilization to 0.86 in the recipe, which fits" in failed["fix"].lower()
    assert "GiB needed" in failed["msg"]
    table = failed["data"]["evidence"]
    assert any("GPU's side" in row and "gpu-memory-utilization 0.95 of 119.7 GiB" in row for row in table), table
    assert before and served.serving() == before
    assert served.run("status", "--host", "sandbox", "--json").events()[0]["state"] == "up"


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("{context: 200k}", "`expect.load.context` 200000 is longer than the server's context of 131072 tokens."),
        ("{context: lots}", "expect.load.context"),
        ("{context: 1000, streams: 0}", "expect.load.streams"),
    ],
)
def test_an_impossible_load_is_refused_with_its_line(served: SandboxProject, load: str, message: str) -> None:
    with served.restored_files():
        served.edit(RECIPE, "load: {context: 2048, streams: 2}", f"load: {load}")
        result = served.run("plan", "--host", "sandbox")
    assert result.code == 5 and message in result.out + result.err and f"{RECIPE}:" in result.out + result.err


def test_bench_context_reports_rate_ttft_and_memory_against_depth(served: SandboxProject) -> None:
    command = ("--depth", "4096", "--streams", "2", "--output-tokens", "8", "--name", "ladder")
    result = served.run("bench.context", "--host", "sandbox", *command)
    assert result.code == 0, result.out + result.err
    results = json.loads((served.root / "results/ladder/results.json").read_text())
    cells = [(cell["load"]["prompt_tokens"], cell["requests"], cell["derived"]) for cell in results["cells"]]
    assert [(tokens, requests) for tokens, requests, _ in cells] == [(1024, 2), (2048, 2), (4096, 2)]
    assert all(0 < derived["lowest_available_gib"] < TOTAL_BYTES / GIB for _, _, derived in cells)
    page = (served.root / "results/ladder/report.html").read_text()
    assert all(f"{title} against depth" in page for title in ("Decode rate", "TTFT", "Memory"))
    assert "depth 4096 x 2" in result.out and "lowest available GiB" in result.out
    second_run = served.run("bench.context", "--host", "sandbox", "--depth", "999999", "--name", "ladder")
    assert second_run.code == 5 and "does not fit a context of 131072" in second_run.out, second_run.out


def test_the_guard_stops_a_server_that_leaks_during_a_measurement_and_it_is_restarted(served: SandboxProject) -> None:
    before = served.serving()
    command = ("--depth", "120000", "--repeat", "9", "--name", "grows")
    try:
        with served.start("bench.context", "--host", "sandbox", *command) as bench:
            wait_until(lambda: guard_header(served).get("what") == "serving", "the guard of the measurement")
            control.set_fault(served.sandbox, "leak")
            wait_until(lambda: served.containers() == ["qwen35 exited"], "the guard's action")
            control.set_fault(served.sandbox, None)
            out, err = bench.communicate(timeout=120)
    finally:
        control.set_fault(served.sandbox, None)
    assert bench.returncode == 1 and "was stopped to save the host" in out, out + err
    assert "while it served 1 x " in out
    assert served.serving() == before != "", out + err
    assert "restored after the lab" in served.run("history", "--host", "sandbox").out

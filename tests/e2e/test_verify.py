"""`verify` proves what runs: the running container, beside nobody, and it leaves nothing behind."""

import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from sparkwright.engines import http as engine_http
from sparkwright.engines.vllm.http import HTTP
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from tests.e2e.conftest import CommandResult, SandboxProject
from tests.waiting import wait_until


def run_verify(project: SandboxProject, *words: str) -> CommandResult:
    return project.run("verify", "--host", "sandbox", "--json", *words)


def rows(result: CommandResult) -> list[dict[str, Any]]:
    return list(result.task("Summarize the checks")["data"]["rows"])


def baselines(project: SandboxProject) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in project.sandbox.rglob("baselines/*.json")}


def served_tokens(project: SandboxProject) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{project.port}/metrics") as answer:
        return HTTP.counters(answer.read().decode())[engine_http.GENERATED]


def state(project: SandboxProject) -> StateFolder:
    return StateFolder.in_home(project.sandbox / "home")


def test_what_runs_is_proved_and_how_it_differs_comes_first(project: SandboxProject) -> None:
    project.deployed()
    pinned, before = (project.sandbox / "spark.lock").read_bytes(), baselines(project)
    project.edit("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 4")
    project.edit("recipes/qwen3.5-35b.yml", r"tok_per_s: [\d.]+", "tok_per_s: 900")  # of what doesn't run
    result = run_verify(project)
    assert result.code == 2 or result.held_up, result.out
    assert result.task("Compare running container with recipe")["msg"].endswith("--max-num-seqs")
    first, *others = rows(result)
    assert (first["check"], first["verdict"]) == ("--max-num-seqs", "differs")
    assert "runs 8" in first["evidence"] and "4" in first["evidence"]
    assert {row["verdict"] for row in others if row["check"] != "throughput"} == {"proved"}
    assert result.held_up or (
        "--max-num-seqs" in result.recap["msg"] and "deploy --host sandbox" in result.recap["msg"]
    )
    assert ((project.sandbox / "spark.lock").read_bytes(), baselines(project)) == (pinned, before)


def test_a_missing_lock_is_not_written(project: SandboxProject) -> None:
    project.deployed()
    (project.sandbox / "spark.lock").unlink()
    assert run_verify(project).proved
    assert not (project.sandbox / "spark.lock").exists()


def test_an_image_that_nobody_can_pin_is_named_and_the_rest_proved(project: SandboxProject) -> None:
    project.deployed()
    project.edit("recipes/qwen3.5-35b.yml", "vllm-openai:v0.32.0", "vllm-openai:v0.1.2")
    result = run_verify(project)
    assert result.code == 2 or result.held_up, result.out
    assert (rows(result)[0]["check"], "v0.1.2" in rows(result)[0]["evidence"]) == ("image", True)


@pytest.mark.parametrize("gone", [False, True])
def test_without_a_server_the_reason_comes_first_and_nothing_else_is_tried(project: SandboxProject, gone: bool) -> None:
    project.deployed()
    api = project.docker().api
    api.stop("qwen35")
    if gone:
        api.remove_container("qwen35")
    result = run_verify(project)
    assert result.code == 1
    first, *others = rows(result)
    assert first["verdict"] == "failed"
    assert ("there is no container qwen35" if gone else "qwen35 has exited (exit code 0") in first["evidence"]
    assert {row["verdict"] for row in others} == {"unknown"}
    assert "no server" in result.recap["msg"]


def test_a_crash_loop_is_named_with_the_end_of_its_log(project: SandboxProject) -> None:
    project.deployed()
    assert project.run("sandbox.fault", "crash-loop").code == 0
    api = project.docker().api
    until_s = time.monotonic() + 30
    while not api.inspect_container("qwen35")["RestartCount"] and time.monotonic() < until_s:
        time.sleep(0.05)
    result = run_verify(project)
    task = result.task("Compare running container with recipe")
    assert (result.code, task["status"]) == (1, "ignored")
    assert "no server: qwen35" in task["msg"]
    assert task["data"]["evidence"]


@pytest.mark.parametrize("by", ["a deploy", "a measurement"])
def test_beside_another_run_nothing_is_asked_of_the_server(project: SandboxProject, by: str) -> None:
    project.deployed()
    before = served_tokens(project)
    owner = lock.LockOwner("deploy.yml", "ann@laptop", "20991231T000000-1234abcd", 1, 4102444800.0)
    busy = (
        lock.acquire(state(project), owner, host="sandbox")
        if by == "a deploy"
        else lock.acquire_measurement(state(project), owner.run, "Bench")
    )
    with busy:
        result = run_verify(project)
    assert result.code == 4
    assert owner.run in result.recap["msg"]
    assert served_tokens(project) == before


def test_with_wait_it_begins_when_the_other_run_has_ended(project: SandboxProject) -> None:
    project.deployed()
    owner = lock.LockOwner("deploy.yml", "ann@laptop", "20991231T000000-1234abcd", 1, 4102444800.0)
    with lock.acquire(state(project), owner, host="sandbox"):
        later = project.start("verify", "--host", "sandbox", "--json", "--wait")
        assert later.stdout is not None
        result = next(line for line in later.stdout if '"waiting: ' in line)
    rest, _ = later.communicate(timeout=120)
    assert owner.who in result
    assert CommandResult(later.returncode, rest, "").proved, rest


def verify_while(project: SandboxProject, interfere: Callable[[], object]) -> CommandResult:
    """Run verify, and interfere while it measures."""
    command = project.start("verify", "--host", "sandbox", "--json")
    assert command.stdout is not None
    for line in command.stdout:
        if '"task_started"' in line and "Measure throughput" in line:
            break
    interfere()
    rest, _ = command.communicate(timeout=120)
    return CommandResult(command.returncode, rest, "")


def restart_manually(project: SandboxProject) -> None:
    """Stopped by hand, and started once its memory is back: into memory that lingers it would die, and Docker start it again."""
    held_kib = available_kib(project)
    project.docker().api.stop("qwen35")
    wait_until(lambda: available_kib(project) > held_kib + 50 * 2**20, "its memory")
    project.docker().api.start("qwen35")


def available_kib(project: SandboxProject) -> int:
    text = (project.sandbox / "root/proc/meminfo").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable"))


def test_a_server_that_somebody_restarts_meanwhile_is_no_failure(project: SandboxProject) -> None:
    project.deployed()
    result = verify_while(project, lambda: restart_manually(project))
    assert (result.code, "qwen35 was restarted during" in result.recap["msg"]) == (4, True), result.out


def test_nor_is_one_that_another_run_begins_to_work_on(project: SandboxProject) -> None:
    project.deployed()
    owner = lock.LockOwner("deploy.yml", "ann@laptop", "20991231T000000-1234abcd", 1, 4102444800.0)
    with ExitStack() as until_the_end:

        def begin_other_run() -> None:
            until_the_end.enter_context(lock.acquire(state(project), owner, host="sandbox"))
            project.docker().api.stop("qwen35")

        result = verify_while(project, begin_other_run)
    assert (result.code, owner.run in result.recap["msg"]) == (4, True), result.out


def find_row(result: CommandResult, check: str) -> dict[str, Any]:
    return next(row for row in rows(result) if row["check"] == check)


def restart_with_fault(project: SandboxProject, fault: str) -> None:
    """Restart the container manually with a fault in its new start only."""
    project.run("sandbox.fault", fault)
    project.docker().api.restart("qwen35", timeout=1)
    project._ready()
    project.run("sandbox.fault", "none")


def test_another_text_after_a_restart_is_told_with_both_until_it_is_accepted(project: SandboxProject) -> None:
    project.deployed()
    assert find_row(run_verify(project), "text")["verdict"] == "proved"
    restart_with_fault(project, "other-text")
    result = run_verify(project)
    assert (result.code, find_row(result, "text")["verdict"]) == (1, "failed"), result.out
    data = result.task("Compare the reference text")["data"]
    assert data["verdict"] == "another"
    assert data["reference"][0].startswith("The lamp turned") and data["texts"][0].startswith("ships. counted")
    accepted = run_verify(project, "--new-baseline")
    assert accepted.code == 0 or accepted.held_up, accepted.out
    assert find_row(run_verify(project), "text")["verdict"] == "proved"


def test_a_server_that_does_not_use_the_gpu_is_told_although_it_generates(project: SandboxProject) -> None:
    project.deployed()
    assert "VLLM::EngineCore (pid " in find_row(run_verify(project), "GPU")["evidence"]
    restart_with_fault(project, "cpu-only")
    result = run_verify(project)
    assert (result.code, find_row(result, "GPU")["verdict"], find_row(result, "generates")["verdict"]) == (
        1,
        "failed",
        "proved",
    )
    assert "device_config=cpu" in find_row(result, "GPU")["evidence"]
    first = json.loads(project.run("diagnose", "--host", "sandbox", "--json").out)["causes"][0]
    assert (first["cause"], first["verdict"]) == ("it runs on the CPU", "found")
    assert "device_config=cpu" in first["evidence"]


def test_a_start_with_another_kernel_than_the_baseline_is_named_with_its_cost(project: SandboxProject) -> None:
    project.deployed()
    kept = [json.loads(text) for text in baselines(project).values()]
    assert [row["about"]["kernels"]["MoE"] for row in kept] == [["FLASHINFER_CUTLASS"]]
    project.run("sandbox.fault", "weight-only")
    restarted = project.run("restart", "--host", "sandbox", "--json")
    assert restarted.code == 0 or restarted.held_up, (
        restarted.out
    )  # the throughput judges a restart, not the kernel's name
    checked = restarted.task("Check the engine log")["msg"]
    assert "as verified before: MoE MARLIN instead of FLASHINFER_CUTLASS" in checked
    result = run_verify(project)
    (row,) = (row for row in rows(result) if row["check"].startswith("MoE MARLIN"))
    assert (result.code == 1 or result.held_up, row["verdict"]) == (True, "failed")
    assert "instead of FLASHINFER_CUTLASS (weight-only: decoding is nearly as fast" in row["check"]

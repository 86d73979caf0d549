"""`verify` tests the running server, not during another run, and changes nothing."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from sparkwright.engines import http as engine_http
from sparkwright.engines.vllm.http import HTTP
from sparkwright.host.runs import lock
from tests.e2e.conftest import CommandResult, SandboxProject, wait_for_line
from tests.waiting import wait_until

OWNER = lock.LockOwner("deploy.yml", "ann@laptop", "20991231T000000-1234abcd", 1, 4102444800.0)


def run_verify(project: SandboxProject, *words: str) -> CommandResult:
    return project.run("verify", "--host", "sandbox", "--json", *words)


def rows(result: CommandResult) -> list[dict[str, Any]]:
    return list(result.task("Summarize the checks")["data"]["rows"])


def baselines(project: SandboxProject) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in project.sandbox.rglob("baselines/*.json")}


def served_tokens(project: SandboxProject) -> float:
    return HTTP.counters(project.get("/metrics"))[engine_http.GENERATED]


def test_the_running_server_is_verified_and_its_difference_from_the_recipe_comes_first(project: SandboxProject) -> None:
    project.deployed()
    pinned, before = (project.sandbox / "spark.lock").read_bytes(), baselines(project)
    project.edit("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 4")
    project.edit(
        "recipes/qwen3.5-35b.yml", r"tok_per_s: [\d.]+", "tok_per_s: 900"
    )  # of the recipe, not of the running server
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
    verified = run_verify(project)
    assert verified.proved and verified.recap["changed"] == 0
    assert not (project.sandbox / "spark.lock").exists()


def test_an_unknown_image_is_named_and_the_rest_verified(project: SandboxProject) -> None:
    project.deployed()
    project.edit("recipes/qwen3.5-35b.yml", "vllm-openai:v0.32.0", "vllm-openai:v0.1.2")
    result = run_verify(project)
    assert result.code == 2 or result.held_up, result.out
    assert (rows(result)[0]["check"], "v0.1.2" in rows(result)[0]["evidence"]) == ("image", True)
    (lookup,) = [event for event in result.events() if "the registry has no" in json.dumps(event)]
    assert (lookup["module"], lookup["status"]) == ("lock_image", "ignored")


@pytest.mark.parametrize("removed", [False, True], ids=["stopped container", "removed container"])
def test_without_a_server_the_reason_comes_first_and_the_rest_is_unknown(
    project: SandboxProject, removed: bool
) -> None:
    project.deployed()
    project.docker().api.stop("qwen35")
    if removed:
        project.docker().api.remove_container("qwen35")
    result = run_verify(project)
    assert result.code == 1
    first, *others = rows(result)
    assert first["verdict"] == "failed"
    assert ("there is no container qwen35" if removed else "qwen35 has exited (exit code 0") in first["evidence"]
    assert {row["verdict"] for row in others} == {"unknown"}
    assert "no server" in result.recap["msg"]


def test_a_crash_loop_is_reported_with_the_end_of_the_log(project: SandboxProject) -> None:
    project.deployed()
    assert project.run("sandbox.fault", "crash-loop").code == 0
    wait_until(lambda: project.container()["RestartCount"], "its first exit")
    result = run_verify(project)
    task = result.task("Compare running container with recipe")
    assert (result.code, task["status"]) == (1, "ignored")
    assert "no server: qwen35" in task["msg"]
    assert task["data"]["evidence"]


@pytest.mark.parametrize("other", ["deploy", "measurement"])
def test_nothing_is_requested_from_the_server_during_another_run(project: SandboxProject, other: str) -> None:
    project.deployed()
    before = served_tokens(project)
    if other == "deploy":
        other_run = lock.acquire(project.state, OWNER, host="sandbox")
    else:
        other_run = lock.acquire_measurement(project.state, OWNER.run, "Bench")
    with other_run:
        result = run_verify(project)
    assert result.code == 4 and OWNER.run in result.recap["msg"]
    assert served_tokens(project) == before


def test_with_wait_it_begins_after_the_other_run(project: SandboxProject) -> None:
    project.deployed()
    with lock.acquire(project.state, OWNER, host="sandbox"):
        verify = project.start("verify", "--host", "sandbox", "--json", "--wait")
        assert OWNER.who in wait_for_line(verify, '"waiting: ')
    rest, _ = verify.communicate(timeout=120)
    assert CommandResult(verify.returncode, rest, "").proved, rest


def verify_while(project: SandboxProject, interfere: Callable[[], object]) -> CommandResult:
    """Run verify, and interfere while it measures."""
    command = project.start("verify", "--host", "sandbox", "--json")
    wait_for_line(command, '"name": "Measure throughput"')
    interfere()
    rest, _ = command.communicate(timeout=120)
    return CommandResult(command.returncode, rest, "")


def restart_manually(project: SandboxProject) -> None:
    """Stop the server, and start it when its memory is released: before that, its start would fail."""
    held_kib = available_kib(project)
    project.docker().api.stop("qwen35")
    wait_until(lambda: available_kib(project) > held_kib + 50 * 2**20, "its memory")
    project.docker().api.start("qwen35")


def available_kib(project: SandboxProject) -> int:
    text = (project.sandbox / "root/proc/meminfo").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable"))


def test_a_manual_restart_during_verify_is_inconclusive(project: SandboxProject) -> None:
    project.deployed()
    result = verify_while(project, lambda: restart_manually(project))
    assert (result.code, "qwen35 was restarted during" in result.recap["msg"]) == (4, True), result.out


def test_another_run_that_begins_during_verify_is_inconclusive(project: SandboxProject) -> None:
    project.deployed()
    with ExitStack() as stack:

        def begin_other_run() -> None:
            stack.enter_context(lock.acquire(project.state, OWNER, host="sandbox"))
            project.docker().api.stop("qwen35")

        result = verify_while(project, begin_other_run)
    assert (result.code, OWNER.run in result.recap["msg"]) == (4, True), result.out


def find_row(result: CommandResult, check: str) -> dict[str, Any]:
    return next(row for row in rows(result) if row["check"] == check)


def restart_with_fault(project: SandboxProject, fault: str) -> None:
    """Restart the container manually with a fault of its start."""
    with project.fault(fault):
        project.docker().api.restart("qwen35", timeout=1)
        wait_until(project.is_up, "the server")


def test_a_changed_reference_text_fails_until_it_is_accepted(project: SandboxProject) -> None:
    project.deployed()
    assert find_row(run_verify(project), "text")["verdict"] == "proved"
    restart_with_fault(project, "other-text")
    result = run_verify(project)
    assert (result.code, find_row(result, "text")["verdict"]) == (1, "failed"), result.out
    data = result.task("Compare the reference text")["data"]
    assert data["verdict"] == "another"
    assert data["reference"][0].startswith("The lamp turned") and data["texts"][0].startswith("ships. counted")
    accepted = run_verify(project, "--new-baseline")
    assert accepted.proved, accepted.out
    assert find_row(run_verify(project), "text")["verdict"] == "proved"


def test_a_server_that_generates_without_the_gpu_fails(project: SandboxProject) -> None:
    project.deployed()
    assert "VLLM::EngineCore (pid " in find_row(run_verify(project), "GPU")["evidence"]
    restart_with_fault(project, "cpu-only")
    result = run_verify(project)
    verdicts = [find_row(result, check)["verdict"] for check in ("GPU", "generates")]
    assert (result.code, verdicts) == (1, ["failed", "proved"])
    assert "device_config=cpu" in find_row(result, "GPU")["evidence"]
    first = json.loads(project.run("diagnose", "--host", "sandbox", "--json").out)["causes"][0]
    assert (first["cause"], first["verdict"]) == ("it runs on the CPU", "found")
    assert "device_config=cpu" in first["evidence"]


def test_another_kernel_than_in_the_baseline_is_named_with_its_cost(project: SandboxProject) -> None:
    project.deployed()
    kept = [json.loads(text) for text in baselines(project).values()]
    assert [row["about"]["kernels"]["MoE"] for row in kept] == [["FLASHINFER_CUTLASS"]]
    project.run("sandbox.fault", "weight-only")
    restarted = project.run("restart", "--host", "sandbox", "--json")
    assert restarted.proved, restarted.out  # a restart fails for its throughput, not for the name of a kernel
    checked = restarted.task("Check the engine log")["msg"]
    assert "as verified before: MoE MARLIN instead of FLASHINFER_CUTLASS" in checked
    result = run_verify(project)
    (row,) = (row for row in rows(result) if row["check"].startswith("MoE MARLIN"))
    assert (result.code == 1 or result.held_up, row["verdict"]) == (True, "failed")
    assert "instead of FLASHINFER_CUTLASS (weight-only: decoding is nearly as fast" in row["check"]

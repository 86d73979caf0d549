"""A start that would take the host down is stopped in time; without the guard each of them does."""

import os
import signal
import subprocess
import sys

import pytest

from sparkwright.guard import samples as rings
from sparkwright.host.memory import host_lost, service_guard, start_guard
from sparkwright.host.records import verified_states
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject
from tests.waiting import wait_until

SEQS = ("recipes/qwen3.5-35b.yml", r"max-num-seqs: \d+", "max-num-seqs: 6")


@pytest.mark.parametrize("fault", ["overshoot", "other-program"])
def test_a_start_that_would_take_the_host_down_is_stopped_and_the_previous_server_serves(
    project: SandboxProject, fault: str
) -> None:
    project.deployed()
    before = project.serving()
    control.set_fault(project.sandbox, fault)
    project.edit(*SEQS)
    result = project.deploy()
    assert result.code == 1, result.out
    failed = next(event for event in result.events() if event.get("status") == "failed")
    print(failed)
    assert "was stopped to save the host" in failed["msg"]
    assert not control.is_lost(project.sandbox)
    assert project.serving() == before
    print(result.recap)


def test_an_arm_of_an_experiment_is_guarded_as_any_start(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    control.set_fault(project.sandbox, "overshoot")
    small = (
        "--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6",
    )  # fmt: skip
    command = ("--flag", "max-num-seqs", "--values", "4", "--name", "arm", *small)
    result = project.run("bench.sweep", "--host", "sandbox", *command)
    assert "was stopped to save the host" in result.out, result.out + result.err
    assert not control.is_lost(project.sandbox)
    assert project.serving() == before


def guard_header(project: SandboxProject) -> dict[str, str]:
    """Return the header of the guard of the current start."""
    rings_there = start_guard.folder(StateFolder.in_home(project.sandbox / "home")).glob("*.ring")
    return next((header for path in rings_there if (header := rings.read(str(path))[0]).get("state") == "guarding"), {})


@pytest.mark.parametrize("fault", ["overshoot", "other-program"])
def test_without_the_guard_the_same_start_takes_the_host_down(project: SandboxProject, fault: str) -> None:
    project.deployed()
    control.set_fault(project.sandbox, fault)
    project.edit(*SEQS)
    with project.start("deploy", "--host", "sandbox", "--json") as deploy:
        wait_until(lambda: guard_header(project), "a guard")
        os.kill(int(guard_header(project)["pid"]), signal.SIGKILL)
        wait_until(lambda: control.is_lost(project.sandbox), "the end of the host")
        deploy.communicate(timeout=60)
    gone = project.run("status", "--host", "sandbox")
    assert (gone.code, "ran out of memory" in gone.out + gone.err) == (3, True), gone


def test_a_configuration_that_took_the_host_down_starts_again_only_when_somebody_says_so(
    project: SandboxProject,
) -> None:
    project.deployed()
    control.set_fault(project.sandbox, "unkillable")
    project.edit(*SEQS)
    project.deploy()
    assert control.is_lost(project.sandbox)
    control.set_fault(project.sandbox, None)  # reboots it

    assert "the host went down at" in " ".join(project.run("status", "--host", "sandbox").out.split())
    second_run = project.deploy()
    assert second_run.code == 5, second_run.out
    assert "the host went down at" in second_run.recap["msg"]
    assert "while qwen35 was starting" in second_run.recap["msg"]
    assert "went down" in project.run("history", "--host", "sandbox").out
    project.docker().api.start("qwen35")
    check_refused(project, "restart")  # it runs and matches: somebody started it by hand
    project.edit(SEQS[0], SEQS[2], "max-num-seqs: 5")
    assert project.deploy().proved, "another configuration needs no word"
    project.edit(SEQS[0], "max-num-seqs: 5", SEQS[2])
    check_refused(project, "deploy")  # the verification of another one has not forgotten it
    result = project.deploy("--anyway")
    assert result.proved, result.out
    assert "went down" not in project.run("status", "--host", "sandbox").out
    assert project.deploy().proved

    state = StateFolder.in_home(project.sandbox / "home")
    row = {
        "key": start_guard.configuration_key(verified_states.load_earlier(state)[0]["spec"]),
        "why": "the host went down at 02:14",
    }
    state.write(host_lost.FORBIDDEN, {"rows": [row]})
    check_refused(project, "rollback")
    assert project.run("rollback", "--host", "sandbox", "--json", "--anyway").proved
    assert state.read(host_lost.FORBIDDEN) is None


def check_refused(project: SandboxProject, command: str) -> None:
    before = project.containers()
    result = project.run(command, "--host", "sandbox", "--json")
    assert (result.code, "the host went down at" in result.recap["msg"]) == (5, True), result.out[-3000:]
    assert "--anyway" in result.recap["msg"]
    assert project.containers() == before, "nothing was touched"


def test_a_server_that_leaks_is_stopped_by_the_guard_of_the_service_and_the_check_says_why(
    project: SandboxProject,
) -> None:
    project.deployed()
    state = StateFolder.in_home(project.sandbox / "home")
    command = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(service_guard.folder(state))]
    with subprocess.Popen(command) as guard:
        wait_until(lambda: service_guard.is_running(state), "the guard")
        control.set_fault(project.sandbox, "leak")
        wait_until(lambda: service_guard.list_actions(state), "an act of the guard")
        wait_until(lambda: project.serving() == "", "the end of the server")
        guard.terminate()
    assert not control.is_lost(project.sandbox)
    result = project.run("health", "--host", "sandbox", "--json")
    assert "qwen35 was stopped at" in result.out, result.out
    assert "to save the host" in result.out
    assert "stopped to save the host" in project.run("history", "--host", "sandbox").out

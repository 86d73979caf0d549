"""A start that would take the host down is stopped in time; without the guard each of them does."""

import os
import signal
import subprocess
import sys

import pytest

from sparkwright.guard import samples as rings
from sparkwright.host.memory import host_lost, service_guard, start_guard
from sparkwright.host.records import good_states
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject
from tests.waiting import wait_until

SEQS = ("recipes/qwen3.5-35b.yml", r"max-num-seqs: \d+", "max-num-seqs: 6")


@pytest.mark.parametrize("fault", ["overshoot", "other-program"])
def test_a_start_that_would_take_the_host_down_is_stopped_and_the_previous_server_serves(
    desk: SandboxProject, fault: str
) -> None:
    desk.deployed()
    before = desk.serving()
    control.set_fault(desk.sandbox, fault)
    desk.edit(*SEQS)
    result = desk.deploy()
    assert result.code == 1, result.out
    failed = next(event for event in result.events() if event.get("status") == "failed")
    print(failed)
    assert "was stopped to save the host" in failed["msg"]
    assert not control.is_lost(desk.sandbox)
    assert desk.serving() == before
    print(result.recap)


def test_an_arm_of_an_experiment_is_guarded_as_any_start(desk: SandboxProject) -> None:
    desk.deployed()
    before = desk.serving()
    control.set_fault(desk.sandbox, "overshoot")
    small = (
        "--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6",
    )  # fmt: skip
    command = ("--flag", "max-num-seqs", "--values", "4", "--name", "arm", *small)
    result = desk.run("bench.sweep", "--host", "sandbox", *command)
    assert "was stopped to save the host" in result.out, result.out + result.err
    assert not control.is_lost(desk.sandbox)
    assert desk.serving() == before


def guard_header(desk: SandboxProject) -> dict[str, str]:
    """What the guard of the start that is under way says of itself."""
    rings_there = start_guard.folder(StateFolder.of(desk.sandbox / "home")).glob("*.ring")
    return next((header for path in rings_there if (header := rings.read(str(path))[0])["state"] == "guarding"), {})


@pytest.mark.parametrize("fault", ["overshoot", "other-program"])
def test_without_the_guard_the_same_start_takes_the_host_down(desk: SandboxProject, fault: str) -> None:
    desk.deployed()
    control.set_fault(desk.sandbox, fault)
    desk.edit(*SEQS)
    with desk.start("deploy", "--host", "sandbox", "--json") as deploy:
        wait_until(lambda: guard_header(desk), "a guard")
        os.kill(int(guard_header(desk)["pid"]), signal.SIGKILL)
        wait_until(lambda: control.is_lost(desk.sandbox), "the end of the host")
        deploy.communicate(timeout=60)
    gone = desk.run("status", "--host", "sandbox")
    assert (gone.code, "ran out of memory" in gone.out + gone.err) == (3, True), gone


def test_a_configuration_that_took_the_host_down_starts_again_only_when_somebody_says_so(desk: SandboxProject) -> None:
    desk.deployed()
    control.set_fault(desk.sandbox, "unkillable")
    desk.edit(*SEQS)
    desk.deploy()
    assert control.is_lost(desk.sandbox)
    control.set_fault(desk.sandbox, None)  # reboots it

    assert "the host went down at" in " ".join(desk.run("status", "--host", "sandbox").out.split())
    second_run = desk.deploy()
    assert second_run.code == 5, second_run.out
    assert "the host went down at" in second_run.recap["msg"]
    assert "while qwen35 was starting" in second_run.recap["msg"]
    assert "went down" in desk.run("history", "--host", "sandbox").out
    desk.docker().api.start("qwen35")
    check_refused(desk, "restart")  # it runs and matches: somebody started it by hand
    desk.edit(SEQS[0], SEQS[2], "max-num-seqs: 5")
    assert desk.deploy().proved, "another configuration needs no word"
    desk.edit(SEQS[0], "max-num-seqs: 5", SEQS[2])
    check_refused(desk, "deploy")  # the verification of another one has not forgotten it
    result = desk.deploy("--anyway")
    assert result.proved, result.out
    assert "went down" not in desk.run("status", "--host", "sandbox").out
    assert desk.deploy().proved

    state = StateFolder.of(desk.sandbox / "home")
    row = {
        "key": start_guard.configuration_key(good_states.load_earlier(state)[0]["spec"]),
        "why": "the host went down at 02:14",
    }
    state.write(host_lost.FORBIDDEN, {"rows": [row]})
    check_refused(desk, "rollback")
    assert desk.run("rollback", "--host", "sandbox", "--json", "--anyway").proved
    assert state.read(host_lost.FORBIDDEN) is None


def check_refused(desk: SandboxProject, command: str) -> None:
    before = desk.containers()
    result = desk.run(command, "--host", "sandbox", "--json")
    assert (result.code, "the host went down at" in result.recap["msg"]) == (5, True), result.out[-3000:]
    assert "--anyway" in result.recap["msg"]
    assert desk.containers() == before, "nothing was touched"


def test_a_server_that_leaks_is_stopped_by_the_guard_of_the_service_and_the_check_says_why(
    desk: SandboxProject,
) -> None:
    desk.deployed()
    state = StateFolder.of(desk.sandbox / "home")
    command = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(service_guard.folder(state))]
    with subprocess.Popen(command) as guard:
        wait_until(lambda: service_guard.is_running(state), "the guard")
        control.set_fault(desk.sandbox, "leak")
        wait_until(lambda: service_guard.list_actions(state), "an act of the guard")
        wait_until(lambda: desk.serving() == "", "the end of the server")
        guard.terminate()
    assert not control.is_lost(desk.sandbox)
    result = desk.run("health", "--host", "sandbox", "--json")
    assert "qwen35 was stopped at" in result.out, result.out
    assert "to save the host" in result.out
    assert "stopped to save the host" in desk.run("history", "--host", "sandbox").out

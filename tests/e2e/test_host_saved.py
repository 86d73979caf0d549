"""A start that would exhaust the host's memory is stopped in time; without the guard the host goes down."""

import os
import signal
import subprocess
import sys

import pytest

from sparkwright.guard import samples as memory_samples
from sparkwright.host.memory import host_outage, service_guard, start_guard
from sparkwright.host.records import verified_states
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject
from tests.e2e.test_bench import SMALL
from tests.waiting import wait_until

RECIPE = "recipes/qwen3.5-35b.yml"
CHANGE = (RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 6")


@pytest.mark.parametrize("fault", ["overshoot", "other-program"])
def test_the_guard_stops_a_start_that_exhausts_memory_and_the_previous_server_serves(
    project: SandboxProject, fault: str
) -> None:
    project.deployed()
    before = project.serving()
    control.set_fault(project.sandbox, fault)
    project.edit(*CHANGE)
    result = project.deploy()
    assert result.code == 1, result.out
    failed = next(event for event in result.events() if event.get("status") == "failed")
    assert "was stopped to save the host" in failed["msg"]
    assert not control.ran_out_of_memory(project.sandbox)
    assert project.serving() == before


def test_the_guard_stops_the_arm_of_an_experiment(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    control.set_fault(project.sandbox, "overshoot")
    options = ("--flag", "max-num-seqs", "--values", "4", "--name", "arm", *SMALL)
    result = project.run("bench.sweep", "--host", "sandbox", *options)
    assert "was stopped to save the host" in result.out, result.out + result.err
    assert not control.ran_out_of_memory(project.sandbox)
    assert project.serving() == before


def guard_header(project: SandboxProject) -> dict[str, str]:
    """Return the header of the guard of the current start."""
    headers = [memory_samples.read(str(path))[0] for path in start_guard.folder(project.state).glob("*.ring")]
    return next((header for header in headers if header.get("state") == "guarding"), {})


@pytest.mark.parametrize("fault", ["overshoot", "other-program"])
def test_without_the_guard_the_same_start_brings_the_host_down(project: SandboxProject, fault: str) -> None:
    project.deployed()
    control.set_fault(project.sandbox, fault)
    project.edit(*CHANGE)
    with project.start("deploy", "--host", "sandbox", "--json") as deploy:
        wait_until(lambda: guard_header(project), "a guard")
        os.kill(int(guard_header(project)["pid"]), signal.SIGKILL)
        wait_until(lambda: control.ran_out_of_memory(project.sandbox), "the end of the host")
        deploy.communicate(timeout=60)
    status = project.run("status", "--host", "sandbox")
    assert (status.code, "ran out of memory" in status.out + status.err) == (3, True), status


def test_a_configuration_that_brought_the_host_down_needs_anyway_to_start(project: SandboxProject) -> None:
    project.deployed()
    control.set_fault(project.sandbox, "unkillable")
    project.edit(*CHANGE)
    project.deploy()
    assert control.ran_out_of_memory(project.sandbox)
    control.set_fault(project.sandbox, None)  # reboots it

    assert "the host went down at" in " ".join(project.run("status", "--host", "sandbox").out.split())
    second_run = project.deploy()
    assert second_run.code == 5, second_run.out
    assert "the host went down at" in second_run.recap["msg"]
    assert "while qwen35 was starting" in second_run.recap["msg"]
    assert "went down" in project.run("history", "--host", "sandbox").out
    project.docker().api.start("qwen35")
    check_refused(project, "restart")  # it runs and matches: it was started by hand
    project.edit(RECIPE, CHANGE[2], "max-num-seqs: 5")
    assert project.deploy().proved, "another configuration is not refused"
    project.edit(RECIPE, "max-num-seqs: 5", CHANGE[2])
    check_refused(project, "deploy")  # it stays refused after another was verified
    result = project.deploy("--anyway")
    assert result.proved, result.out
    assert "went down" not in project.run("status", "--host", "sandbox").out
    assert project.deploy().proved

    key = start_guard.configuration_key(verified_states.load_earlier(project.state)[0].spec)
    project.state.write(host_outage.FORBIDDEN_RECORD, {"rows": [{"key": key, "why": "the host went down at 02:14"}]})
    check_refused(project, "rollback")
    assert project.run("rollback", "--host", "sandbox", "--json", "--anyway").proved
    assert project.state.read(host_outage.FORBIDDEN_RECORD) is None


def check_refused(project: SandboxProject, command: str) -> None:
    before = project.containers()
    result = project.run(command, "--host", "sandbox", "--json")
    assert (result.code, "the host went down at" in result.recap["msg"]) == (5, True), result.out[-3000:]
    assert "--anyway" in result.recap["msg"]
    assert project.containers() == before


def test_the_service_guard_stops_a_leaking_server_and_health_reports_it(project: SandboxProject) -> None:
    project.deployed()
    state = project.state
    command = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(service_guard.folder(state))]
    with subprocess.Popen(command) as guard:
        wait_until(lambda: service_guard.is_running(state), "the guard")
        control.set_fault(project.sandbox, "leak")
        wait_until(lambda: service_guard.list_actions(state), "an action of the guard")
        wait_until(lambda: project.serving() == "", "the end of the server")
        guard.terminate()
    assert not control.ran_out_of_memory(project.sandbox)
    result = project.run("health", "--host", "sandbox", "--json")
    assert "qwen35 was stopped at" in result.out, result.out
    assert "to save the host" in result.out
    assert "stopped to save the host" in project.run("history", "--host", "sandbox").out

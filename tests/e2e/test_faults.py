"""Each fault: a clear failure, and the old server is running or restored."""

import json
import os
import signal

import pytest

from sparkwright.sandbox import control
from sparkwright.sandbox.faults import MEMBER_FAULTS
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.faults.bench import is_released
from tests.waiting import wait_until

CHANGE = ("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 4")
NEW_IMAGE = ("recipes/qwen3.5-35b.yml", "image: .*", "image: vllm/vllm-openai:latest")

#: fault, the user's change, exit code, text of the screen
FAULTS = [
    ("slow", CHANGE, 1, "misconfigured"),
    ("wedge", CHANGE, 1, "no token arrived within 3 s"),
    ("cpu-only", CHANGE, 1, "the server does not use the GPU; engine log: device_config=cpu"),
    ("oom", CHANGE, 1, "GiB were free, and the engine requested"),
    ("engine-exits", CHANGE, 1, "it crashed on the first request"),
    ("crash-loop", CHANGE, 1, "the engine exited (exit code 1)"),
    ("half-model", CHANGE, 1, "interrupted"),
    ("no-space", NEW_IMAGE, 1, "no space left"),
    ("wrong-arch", NEW_IMAGE, 5, "is not available for linux/arm64, only for linux/amd64"),
]


@pytest.mark.parametrize(("fault", "change", "code", "message"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_fails_the_deploy_with_its_reason_and_the_old_server_serves(
    project: SandboxProject, fault: str, change: tuple[str, str, str], code: int, message: str
) -> None:
    project.deployed()
    before = project.serving()
    assert before
    project.run("sandbox.fault", fault)
    project.edit(*change)
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == code, result.out + result.err
    assert message in result.out + result.err
    assert "failed=0" not in result.out
    project.run("sandbox.fault", "none")
    assert project.serving() == before
    assert project.containers() == ["qwen35 running"]


def test_an_occupied_port_is_refused_with_its_owner(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.run("sandbox.fault", "port-taken")
    project.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {project.port + 1}")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 5, result.out
    assert f"port {project.port + 1} is in use by port-squatter (pid " in result.out
    project.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {project.port}")
    assert project.serving() == before


def test_a_second_sandbox_on_the_same_port_is_refused_with_the_folder_of_the_first(project: SandboxProject) -> None:
    project.deployed()
    with sandbox_project() as other:
        other.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {project.port}")
        assert other.run("lock", "--host", "sandbox").code == 0
        result = other.run("deploy", "--host", "sandbox")
        message = " ".join(result.out.split())
        assert result.code == 5, result.out
        assert f"port {project.port} is in use by the sandbox in {project.sandbox.resolve()} (pid " in message
        assert "Run `sparkwright sandbox.down` in its project, or use another port with `serve_port:`" in message
        assert other.containers() == []
    assert project.containers() == ["qwen35 running"]


def test_a_busy_ollama_fails_the_deploy_before_the_old_server_is_stopped(project: SandboxProject) -> None:
    project.edit("recipes/qwen3.5-35b.yml", "gpu-memory-utilization: 0.85", "gpu-memory-utilization: 0.60")
    project.deployed()
    before = project.serving()
    project.run("sandbox.fault", "ollama-busy")
    project.edit(*CHANGE)
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 1
    assert "Ollama keeps qwen3:32b in memory: a request is using it" in result.out
    assert project.serving() == before


@pytest.mark.parametrize("fault", ["moved-tag", "moved-model"])
def test_a_moved_tag_or_model_does_not_change_a_locked_host(project: SandboxProject, fault: str) -> None:
    project.deployed()
    before = (project.sandbox / "spark.lock").read_text()
    project.run("sandbox.fault", fault)
    result = project.deploy()
    assert (result.code, result.recap["changed"]) == (0, 0)
    assert (project.sandbox / "spark.lock").read_text() == before


def test_a_first_deploy_that_fails_leaves_no_crash_loop(project: SandboxProject) -> None:
    project.run("sandbox.fault", "crash-loop")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 1
    assert "There was no previous server to restore" in result.out
    assert project.containers() == ["qwen35 exited"]


def test_faults_are_listed_and_a_misspelled_name_is_corrected(project: SandboxProject) -> None:
    listed = project.run("sandbox.fault")
    assert listed.out.count("\n") == len({**control.FAULTS, **MEMBER_FAULTS})
    assert "Did you mean `wedge`?" in project.run("sandbox.fault", "wege").err


def test_a_fault_can_be_injected_again_and_a_restart_clears_it_for_good(project: SandboxProject) -> None:
    project.deployed()
    server = project.container()
    for fault in ("ollama-busy", None, "ollama-loads", None):  # Ollama has no memory left to load a model
        control.set_fault(project.sandbox, fault)
        assert control.status(project.sandbox)["sandbox"] == "up"
    assert project.container()["State"] == server["State"]
    assert project.serving() == server["Id"]
    for _ in range(2):
        control.set_fault(project.sandbox, "wedge")
        assert not project.serving()
        project.docker().api.restart("qwen35")
        wait_until(project.serving, "the restarted server")
    os.kill(json.loads((project.sandbox / "state.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: is_released(project.sandbox / "alive"), "the sandbox's end")
    control.up(project.sandbox)
    wait_until(project.serving, "the server without the fault")


def test_a_restart_fails_with_a_fault_and_the_next_deploy_starts_the_server(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    control.set_fault(project.sandbox, "oom")
    result = project.run("restart", "--host", "sandbox", "--json")
    assert (result.code, "GiB were free, and the engine requested" in result.recap["msg"]) == (1, True), result.recap
    assert project.serving() == ""
    control.set_fault(project.sandbox, None)
    assert project.deploy().proved
    assert project.serving() == before

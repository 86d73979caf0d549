"""Each thing that can be broken: a clear failure, never green, and the old server serving or put back."""

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
NEW_IMAGE = ("recipes/qwen3.5-35b.yml", r"(?m)v0\.32\.0$", "latest")

#: fault, what the user changed, exit code, what the screen says
FAULTS = [
    ("slow", CHANGE, 1, "misconfigured"),
    ("wedge", CHANGE, 1, "no token arrived within 3 s"),
    ("cpu-only", CHANGE, 1, "the server does not use the GPU; engine log: device_config=cpu"),
    ("oom", CHANGE, 1, "GiB were free, and the engine requested"),
    ("engine-exits", CHANGE, 1, "it crashed on the first request"),
    ("crash-loop", CHANGE, 1, "the engine exited (exit code 1)"),
    ("half-model", CHANGE, 1, "interrupted"),
    ("no-space", ("recipes/qwen3.5-35b.yml", "latest\n", "latest\n"), 1, "no space left"),
    (
        "wrong-arch",
        ("recipes/qwen3.5-35b.yml", "image: .*", "image: vllm/vllm-openai:latest"),
        5,
        "has no linux/arm64, only linux/amd64",
    ),
]


@pytest.mark.parametrize(("fault", "change", "code", "result"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_is_a_clear_failure_with_the_old_server_back(
    project: SandboxProject, fault: str, change: tuple[str, str, str], code: int, result: str
) -> None:
    project.deployed()
    before = project.serving()
    assert before
    project.run("sandbox.fault", fault)
    if fault == "no-space":
        change = ("recipes/qwen3.5-35b.yml", "image: .*", "image: vllm/vllm-openai:latest")
    project.edit(*change)
    outcome = project.run("deploy", "--host", "sandbox")
    assert outcome.code == code, outcome.out + outcome.err
    assert result in outcome.out + outcome.err
    assert "failed=0" not in outcome.out
    project.run("sandbox.fault", "none")
    assert project.serving() == before
    assert project.containers() == ["qwen35 running"]


def test_a_port_taken_by_something_else_is_refused_with_its_name(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.run("sandbox.fault", "port-taken")
    project.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {project.port + 1}")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 5, result.out
    assert f"port {project.port + 1} is in use by port-squatter (pid " in result.out
    project.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {project.port}")
    assert project.serving() == before


def test_a_second_sandbox_on_the_same_port_is_refused_with_the_first_ones_folder(project: SandboxProject) -> None:
    project.deployed()
    with sandbox_project() as other:
        other.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {project.port}")
        assert other.run("lock", "--host", "sandbox").code == 0
        outcome = other.run("deploy", "--host", "sandbox")
        result = " ".join(outcome.out.split())
        assert outcome.code == 5, outcome.out
        assert f"port {project.port} is in use by the sandbox in {project.sandbox.resolve()} (pid " in result
        assert "Run `sparkwright sandbox.down` in its project, or use another port with `serve_port:`" in result
        assert other.containers() == []
    assert project.containers() == ["qwen35 running"]


def test_a_busy_ollama_stops_the_deploy_before_the_old_server(project: SandboxProject) -> None:
    for flag in ("0.85", "0.60"):
        project.edit("recipes/qwen3.5-35b.yml", f"gpu-memory-utilization: {flag}", "gpu-memory-utilization: 0.60")
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


def test_a_value_that_the_engine_would_refuse_never_takes_the_server_down(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.edit("recipes/qwen3.5-35b.yml", "  kv-cache-dtype: fp8", "  kv-cache-dtype: fp9")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 5
    assert "kv-cache-dtype must be one of auto, bfloat16" in result.out
    assert project.serving() == before


def test_faults_are_listed_and_a_near_miss_is_named(project: SandboxProject) -> None:
    listed = project.run("sandbox.fault")
    assert listed.out.count("\n") == len({**control.FAULTS, **MEMBER_FAULTS})
    assert "Did you mean `wedge`?" in project.run("sandbox.fault", "wege").err


def test_a_fault_means_what_it_says_each_time_it_is_said(project: SandboxProject) -> None:
    """Beside a server that holds the memory Ollama loads nothing; said twice it breaks twice; what a stop cured stays so."""
    project.deployed()
    server = project.docker().api.inspect_container("qwen35")
    for order in ("ollama-busy", None, "ollama-loads", None):
        control.set_fault(project.sandbox, order)
        assert control.status(project.sandbox)["sandbox"] == "up"
    assert project.docker().api.inspect_container("qwen35")["State"] == server["State"], "it serves all the while"
    assert project.serving() == server["Id"]
    for _ in range(2):
        control.set_fault(project.sandbox, "wedge")
        assert not project.serving()
        project.docker().api.restart("qwen35")
        wait_until(project.serving, "its cure")
    os.kill(json.loads((project.sandbox / "state.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: is_released(project.sandbox / "alive"), "the sandbox's end")
    control.up(project.sandbox)
    wait_until(project.serving, "the cured server")


def test_a_restart_meets_the_faults_of_a_start_and_a_deploy_starts_it_again(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    control.set_fault(project.sandbox, "oom")
    result = project.run("restart", "--host", "sandbox", "--json")
    assert (result.code, "GiB were free, and the engine requested" in result.recap["msg"]) == (1, True), result.recap
    assert project.serving() == ""
    control.set_fault(project.sandbox, None)
    assert project.deploy().proved
    assert project.serving() == before

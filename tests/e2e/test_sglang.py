"""The shipped SGLang recipe on the sandbox: proved, unchanged by a second deploy, and broken in each way that makes sense for it."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project
from tests.e2e.test_bench import SMALL, read_results

NAME = "examples/qwen3.8-27b-sglang"
RECIPE = f"recipes/{NAME}.yml"
VLLM = ("hosts/sandbox.yml", "recipe: .*", "recipe: qwen3.5-35b")
GGUF = "recipes/gpt-oss-120b-gguf.yml"


def use_sglang(project: SandboxProject) -> SandboxProject:
    """Use the SGLang recipe, in the container of the vLLM recipe."""
    project.edit(RECIPE, "name: qwen38\n", "name: qwen35\n")
    project.edit("hosts/sandbox.yml", "recipe: .*", f"recipe: {NAME}")
    return project


def query_owner(project: SandboxProject) -> str:
    """Return the owner of the models that the server lists."""
    with urllib.request.urlopen(f"http://127.0.0.1:{project.port}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["owned_by"])


def assert_serving(project: SandboxProject, *words: str) -> CommandResult:
    result = project.deploy(*words)
    assert result.proved, result.out[-3000:]
    return result


@pytest.fixture(scope="module")
def served() -> Iterator[SandboxProject]:
    """One deployed server; each test leaves it as it was."""
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        result = assert_serving(use_sglang(project))
        state = result.task("Check the engine log")["data"]["state"]
        assert (state["chunked_prefill"], state["prefix_caching"]) == (True, True)
        assert state["evidence"]["chunked_prefill"].startswith("GET /server_info")
        probes = {check["check"]: check["verdict"] for check in result.task("Probe its answers")["data"]["checks"]}
        assert {"json_schema", "language de"} <= set(probes) and set(probes.values()) == {"proved"}
        assert result.task("Check that it uses the GPU")["data"]["processes"][0]["name"] == "sglang::scheduler"
        yield project


def test_the_shipped_recipe_serves_and_a_second_deploy_changes_nothing(served: SandboxProject) -> None:
    assert query_owner(served) == "sglang"
    second_run = served.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    status = served.run("status", "--host", "sandbox")
    assert status.code == 0 and NAME in status.out
    verified = served.run("verify", "--host", "sandbox")
    assert verified.proved, verified.out[-3000:]
    assert "GET /server_info: chunked_prefill True" in verified.out


#: fault, exit codes of verify and diagnose, and what the first line of diagnose says
RUNNING_FAULTS = [
    ("wedge", 1, 1, "no token"),
    ("slow", 1, 1, "slow: 5.7 of 4"),
    ("power", 4, 1, "held at a low clock"),
]


@pytest.mark.parametrize(
    ("fault", "verify", "diagnose", "first"), RUNNING_FAULTS, ids=[row[0] for row in RUNNING_FAULTS]
)
def test_a_fault_of_a_running_server_is_told(
    served: SandboxProject, fault: str, verify: int, diagnose: int, first: str
) -> None:
    before = query_owner(served)
    assert served.run("sandbox.fault", fault).code == 0
    try:
        checked = served.run("verify", "--host", "sandbox")
        assert checked.code == verify, checked.out
        result = served.run("diagnose", "--host", "sandbox", "--token-s", "3")
        assert (result.code, first in result.out.splitlines()[0]) == (diagnose, True), result.out
    finally:
        served.run("sandbox.fault", "none")
    assert query_owner(served) == before


def test_a_lab_whose_arm_does_not_fit_is_refused_before_anything_is_stopped(served: SandboxProject) -> None:
    before = served.containers(), query_owner(served)
    result = served.run("bench.ab", "--host", "sandbox", "--flag", "chunked-prefill", "--name", "too-large", *SMALL)
    assert result.code == 5, result.out + result.err
    assert "16384 tokens of unchunked prompts" in result.out, result.out
    assert "set mem-fraction-static to 0." in result.out and "Stop server" not in result.out
    assert (served.containers(), query_owner(served)) == before


def test_its_lab_run_compares_the_two_arms_and_gives_the_server_back(served: SandboxProject) -> None:
    """Prompts in one piece take 25 GiB to compute with, outside of the share, so the share is less than as shipped."""
    served.edit(RECIPE, "mem-fraction-static: 0.7 ", "mem-fraction-static: 0.6 ")
    try:
        assert_serving(served)
        _run_comparison(served)
    finally:
        served.edit(RECIPE, "mem-fraction-static: 0.6 ", "mem-fraction-static: 0.7 ")
        assert served.deploy().code == 0


def _run_comparison(served: SandboxProject) -> None:
    result = served.run("bench.ab", "--host", "sandbox", "--flag", "chunked-prefill", "--name", "sglang", *SMALL)
    assert result.code == 0, result.out + result.err
    arms: list[dict[str, Any]] = read_results(served, "sglang")["arms"]
    assert [arm["effective"]["chunked_prefill"] for arm in arms] == [True, False]
    assert served.deploy().recap["changed"] == 0


#: fault at the next start, what the deploy says
START_FAULTS = [
    ("oom", "mem-fraction-static 0.7 is too low for the weights"),
    ("crash-loop", "the engine exited (exit code 0)"),
    ("cpu-only", "the server does not use the GPU"),
    ("engine-exits", "it crashed on the first request"),
]


@pytest.mark.parametrize(("fault", "result"), START_FAULTS, ids=[row[0] for row in START_FAULTS])
def test_a_fault_of_a_start_gives_the_server_before_it_back(served: SandboxProject, fault: str, result: str) -> None:
    before = served.containers(), query_owner(served)
    assert served.run("sandbox.fault", fault).code == 0
    served.edit(RECIPE, "chunked-prefill-size: 2048", "chunked-prefill-size: 4096")
    try:
        outcome = served.run("deploy", "--host", "sandbox")
    finally:
        served.run("sandbox.fault", "none")
        served.edit(RECIPE, "chunked-prefill-size: 4096", "chunked-prefill-size: 2048")
    assert outcome.code == 1 and result in outcome.out, outcome.out
    assert (served.containers(), query_owner(served)) == before


def test_damaged_weights_generate_another_text(served: SandboxProject) -> None:
    assert served.run("sandbox.fault", "other-text").code == 0
    try:
        restarted = served.run("restart", "--host", "sandbox")
    finally:
        served.run("sandbox.fault", "none")
    assert restarted.code == 1 and "the text differs from that of" in restarted.out, restarted.out
    served.docker().api.restart("qwen35")


def test_chunked_prefill_is_turned_off_and_proved(served: SandboxProject) -> None:
    served.edit(RECIPE, "mem-fraction-static: 0.7 ", "mem-fraction-static: 0.6 ")
    served.edit(RECIPE, "chunked_prefill: enabled", "chunked_prefill: disabled")
    served.edit(RECIPE, "  chunked-prefill-size: 2048\n", "")
    result = assert_serving(served)
    assert result.task("Check the engine log")["data"]["state"]["chunked_prefill"] is False
    assert query_owner(served) == "sglang"


def test_the_three_engines_follow_one_another_on_one_port_and_back(project: SandboxProject) -> None:
    project.deployed()
    assert_serving(use_sglang(project))
    assert query_owner(project) == "sglang"
    project.edit(GGUF, "name: gpt-oss-120b-gguf", "name: qwen35")
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    assert project.run("sandbox.fault", "crash-loop").code == 0
    failed = project.deploy()
    assert failed.code == 1 and control.up(project.sandbox) and query_owner(project) == "sglang"
    assert project.run("sandbox.fault", "none").code == 0
    assert_serving(project)
    assert query_owner(project) == "llamacpp"
    assert project.run("rollback", "--host", "sandbox").proved
    assert query_owner(project) == "sglang"


@pytest.mark.parametrize(
    ("section", "result"),
    [
        ("sglang:\n  max-model-len: 8192", "max-model-len is vLLM's; SGLang has context-length"),
        ("sglang:\n  mem-fraction-static: 85", "must be above 0 and below 1"),
        ("sglang:\n  host: 127.0.0.1", "is only reachable inside the container"),
        ("llama_cpp:\n  ctx-size: 8192", "`llama_cpp`"),
    ],
)
def test_what_this_engine_can_t_do_is_refused_before_anything_is_touched(
    project: SandboxProject, section: str, result: str
) -> None:
    use_sglang(project).edit(RECIPE, r"sglang:(\n  .*)+", section)
    refused = project.run("deploy", "--host", "sandbox")
    assert refused.code == 5, refused.out + refused.err
    assert result in refused.out + refused.err

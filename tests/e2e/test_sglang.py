"""The shipped SGLang recipe on the sandbox: verified, unchanged by a second deploy, and with each applicable fault."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.e2e.test_bench import SMALL, read_results
from tests.e2e.test_llama_cpp import use_llama_cpp

NAME = "examples/qwen3.8-27b-sglang"
RECIPE = f"recipes/{NAME}.yml"


def use_sglang(project: SandboxProject) -> SandboxProject:
    """Use the SGLang recipe, in the container of the vLLM recipe."""
    project.edit(RECIPE, "name: qwen38\n", "name: qwen35\n")
    project.edit("hosts/sandbox.yml", "recipe: .*", f"recipe: {NAME}")
    return project


@pytest.fixture(scope="module")
def served() -> Iterator[SandboxProject]:
    """A deployed server. Each test leaves it unchanged."""
    with sandbox_project() as project:
        result = use_sglang(project).deploy_proved()
        state = result.task("Check the engine log")["data"]["state"]
        assert (state["chunked_prefill"], state["prefix_caching"]) == (True, True)
        assert state["evidence"]["chunked_prefill"].startswith("GET /server_info")
        probes = {check["check"]: check["verdict"] for check in result.task("Probe its answers")["data"]["checks"]}
        assert {"json_schema", "language de"} <= set(probes) and set(probes.values()) == {"proved"}
        assert result.task("Check that it uses the GPU")["data"]["processes"][0]["name"] == "sglang::scheduler"
        yield project


def test_a_second_deploy_changes_nothing_and_verify_passes(served: SandboxProject) -> None:
    assert served.model_owner() == "sglang"
    second_run = served.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    status = served.run("status", "--host", "sandbox")
    assert status.code == 0 and NAME in status.out
    verified = served.run("verify", "--host", "sandbox")
    assert verified.proved, verified.out[-3000:]
    assert "GET /server_info: chunked_prefill True" in verified.out


@pytest.mark.parametrize(
    ("fault", "verify_code", "first_line"),
    [("wedge", 1, "no token"), ("slow", 1, "slow: 5.7 of 4"), ("power", 4, "held at a low clock")],
)
def test_verify_and_diagnose_detect_a_fault(
    served: SandboxProject, fault: str, verify_code: int, first_line: str
) -> None:
    with served.fault(fault):
        verified = served.run("verify", "--host", "sandbox")
        assert verified.code == verify_code, verified.out
        diagnosed = served.run("diagnose", "--host", "sandbox", "--token-s", "3")
        assert (diagnosed.code, first_line in diagnosed.out.splitlines()[0]) == (1, True), diagnosed.out
    assert served.model_owner() == "sglang"


def test_an_arm_that_does_not_fit_is_refused_while_the_server_runs(served: SandboxProject) -> None:
    before = served.containers(), served.model_owner()
    result = served.run("bench.ab", "--host", "sandbox", "--flag", "chunked-prefill", "--name", "too-large", *SMALL)
    assert result.code == 5, result.out + result.err
    assert "16384 tokens of unchunked prompts" in result.out, result.out
    assert "set mem-fraction-static to 0." in result.out and "Stop server" not in result.out
    assert (served.containers(), served.model_owner()) == before


def test_bench_compares_both_arms_and_restores_the_server(served: SandboxProject) -> None:
    try:
        with served.restored_files():
            # unchunked prompts need 25 GiB outside of the share, so the share is smaller than in the shipped recipe
            served.edit(RECIPE, "mem-fraction-static: 0.7 ", "mem-fraction-static: 0.6 ")
            served.deploy_proved()
            options = ("--flag", "chunked-prefill", "--name", "sglang", *SMALL)
            result = served.run("bench.ab", "--host", "sandbox", *options)
            assert result.code == 0, result.out + result.err
            arms = read_results(served, "sglang")["arms"]
            assert [arm["effective"]["chunked_prefill"] for arm in arms] == [True, False]
            assert served.deploy().recap["changed"] == 0
    finally:
        assert served.deploy().code == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("oom", "mem-fraction-static 0.7 is too low for the weights"),
        ("crash-loop", "the engine exited (exit code 0)"),
        ("cpu-only", "the server does not use the GPU"),
        ("engine-exits", "it crashed on the first request"),
    ],
)
def test_a_start_with_a_fault_restores_the_previous_server(served: SandboxProject, fault: str, message: str) -> None:
    before = served.containers(), served.model_owner()
    with served.fault(fault), served.restored_files():
        served.edit(RECIPE, "chunked-prefill-size: 2048", "chunked-prefill-size: 4096")
        result = served.run("deploy", "--host", "sandbox")
    assert result.code == 1 and message in result.out, result.out
    assert (served.containers(), served.model_owner()) == before


def test_damaged_weights_are_detected_by_their_text(served: SandboxProject) -> None:
    with served.fault("other-text"):
        restarted = served.run("restart", "--host", "sandbox")
    assert restarted.code == 1 and "the text differs from that of" in restarted.out, restarted.out
    served.docker().api.restart("qwen35")


def test_chunked_prefill_is_turned_off_and_verified(served: SandboxProject) -> None:
    served.edit(RECIPE, "mem-fraction-static: 0.7 ", "mem-fraction-static: 0.6 ")
    served.edit(RECIPE, "chunked_prefill: enabled", "chunked_prefill: disabled")
    served.edit(RECIPE, "  chunked-prefill-size: 2048\n", "")
    result = served.deploy_proved()
    assert result.task("Check the engine log")["data"]["state"]["chunked_prefill"] is False
    assert served.model_owner() == "sglang"


def test_three_engines_replace_each_other_on_one_port(project: SandboxProject) -> None:
    project.deployed()
    use_sglang(project).deploy_proved()
    assert project.model_owner() == "sglang"
    use_llama_cpp(project)
    with project.fault("crash-loop"):
        assert project.deploy().code == 1
        assert project.model_owner() == "sglang"
    project.deploy_proved()
    assert project.model_owner() == "llamacpp"
    assert project.run("rollback", "--host", "sandbox").proved
    assert project.model_owner() == "sglang"

"""Deploys of a simulated llama-server: verified, replacing a vLLM server, and rolled back."""

import pytest

from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/gpt-oss-120b-gguf.yml"


@pytest.fixture
def llama(project: SandboxProject) -> SandboxProject:
    use_llama_cpp(project)
    return project


def use_llama_cpp(project: SandboxProject) -> None:
    """Use the llama.cpp recipe, in the container of the vLLM recipe."""
    project.edit(RECIPE, "name: gpt-oss-120b-gguf", "name: qwen35")
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")


def test_a_deploy_is_verified_and_a_second_one_changes_nothing(llama: SandboxProject) -> None:
    result = llama.deploy_proved()
    assert llama.model_owner() == "llamacpp"
    log = result.task("Check the engine log")["data"]["state"]
    assert (log["max_model_len"], log["chunked_prefill"]) == (131072, True)
    assert log["evidence"]["max_model_len"].startswith("GET /props")
    assert result.task("Check that it uses the GPU")["data"]["processes"][0]["name"] == "llama-server"
    probes = {check["check"]: check["verdict"] for check in result.task("Probe its answers")["data"]["checks"]}
    assert len([name for name in probes if "," not in name]) == 3 and set(probes.values()) == {"proved"}
    second_run = llama.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    verified = llama.run("verify", "--host", "sandbox", "--json")
    assert verified.proved, verified.out[-3000:]
    diagnosed = llama.run("diagnose", "--host", "sandbox")
    assert diagnosed.code == 0 and "unknown-flag" not in diagnosed.out and "model-file" not in diagnosed.out


def test_llama_cpp_replaces_a_vllm_server_that_is_restored_after_a_crash_and_a_rollback(
    project: SandboxProject,
) -> None:
    project.deployed()
    assert project.model_owner() == "vllm"
    use_llama_cpp(project)
    with project.fault("crash-loop"):
        failed = project.deploy()
        assert failed.code == 1 and "the engine exited (exit code 1)" in failed.out
        assert project.model_owner() == "vllm"
    project.deploy_proved()
    assert project.model_owner() == "llamacpp"
    assert project.run("rollback", "--host", "sandbox").code == 0
    assert project.model_owner() == "vllm"


def test_a_context_capped_by_the_engine_fails_the_deploy(llama: SandboxProject) -> None:
    llama.edit(RECIPE, "ctx-size: 262144", "ctx-size: 524288")
    result = llama.deploy()
    assert result.code == 1, result.out[-2000:]
    assert "the slot context (262144) exceeds the training context of the model (131072) - capping" in result.out

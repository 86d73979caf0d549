"""The same deploy with another engine: a pretend llama-server is started, proved, swapped for a vLLM server and rolled back."""

import json
import urllib.request

import pytest

from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, SandboxProject

RECIPE = "recipes/gpt-oss-120b-gguf.yml"


@pytest.fixture
def llama(project: SandboxProject) -> SandboxProject:
    """Use the llama.cpp recipe, in the container of the vLLM recipe."""
    project.edit(RECIPE, "name: gpt-oss-120b-gguf", "name: qwen35")
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    return project


def query_owner(project: SandboxProject) -> str:
    """Return the owner of the models that the server lists."""
    with urllib.request.urlopen(f"http://127.0.0.1:{project.port}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["owned_by"])


def assert_serving(project: SandboxProject) -> CommandResult:
    result = project.deploy()
    assert result.proved, result.out[-3000:]
    return result


def test_a_deploy_is_proved_and_a_second_one_changes_nothing(llama: SandboxProject) -> None:
    result = assert_serving(llama)
    assert query_owner(llama) == "llamacpp"
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
    output = llama.run("diagnose", "--host", "sandbox")
    assert output.code == 0 and "unknown-flag" not in output.out and "model-file" not in output.out


def test_it_takes_the_place_of_a_vllm_server_and_gives_it_back(project: SandboxProject) -> None:
    project.deployed()
    assert query_owner(project) == "vllm"
    project.edit(RECIPE, "name: gpt-oss-120b-gguf", "name: qwen35")
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    assert_serving(project)
    assert query_owner(project) == "llamacpp"
    assert project.run("rollback", "--host", "sandbox").code == 0
    assert query_owner(project) == "vllm"


def test_one_that_dies_gives_the_vllm_server_back(llama: SandboxProject) -> None:
    llama.edit("hosts/sandbox.yml", "recipe: .*", "recipe: qwen3.5-35b")
    llama.deployed()
    llama.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    assert llama.run("sandbox.fault", "crash-loop").code == 0
    result = llama.deploy()
    assert result.code == 1 and "the engine exited (exit code 1)" in result.out
    assert control.up(llama.sandbox) and query_owner(llama) == "vllm"


def test_a_context_that_it_caps_is_not_what_was_asked(llama: SandboxProject) -> None:
    llama.edit(RECIPE, "ctx-size: 262144", "ctx-size: 524288")
    result = llama.deploy()
    assert result.code == 1, result.out[-2000:]
    assert "the slot context (262144) exceeds the training context of the model (131072) - capping" in result.out


@pytest.mark.parametrize(
    ("section", "result"),
    [
        ("llama_cpp:\n  max-model-len: 8192", "max-model-len is vLLM's; llama.cpp has ctx-size"),
        ("llama_cpp:\n  ctx-size: lots", "must be a whole number, got 'lots'"),
        ("vllm:\n  max-num-seqs: 8", "`vllm`"),
        ("llama_cpp:\n  hf: org/repo", "does not pin"),
    ],
)
def test_what_this_engine_can_t_do_is_refused_before_anything_is_touched(
    llama: SandboxProject, section: str, result: str
) -> None:
    llama.edit(RECIPE, r"llama_cpp:(\n  .*)+", section)
    refused = llama.run("deploy", "--host", "sandbox")
    assert refused.code == 5, refused.out + refused.err
    assert result in refused.out + refused.err and f"{RECIPE}:" in refused.out + refused.err


def test_a_server_that_nobody_verified_is_not_replaced_and_it_is_said_what_would_do_that(
    project: SandboxProject,
) -> None:
    project.deployed()
    (project.sandbox / "home/.local/state/sparkwright/verified.json").unlink()
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    refused = project.run("deploy", "--host", "sandbox")
    assert refused.code == 5, refused.out
    result = " ".join(refused.out.split())
    assert (
        "is in use by container qwen35" in result
        and "`docker stop qwen35`" in result
        and "`container.name: qwen35`" in result
    )
    assert query_owner(project) == "vllm"

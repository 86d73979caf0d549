"""`engine: openai` in the sandbox: the pretend llama-server as one that no release knows, described in its recipe."""

import json

import pytest
import yaml

from tests.e2e.conftest import SandboxProject

FILE = "/etc/sparkwright/options.yml"
MODEL = "/models/gpt-oss-120b"
RECIPE = {
    "engine": "openai",
    "image": "ghcr.io/ggml-org/llama.cpp:server-cuda13-b11549",
    "model": {"id": "ggml-org/gpt-oss-120b-GGUF", "dir": "~/models/gpt-oss-120b-gguf", "mount": MODEL},
    "container": {"name": "qwen35", "entrypoint": ["/app/llama-server"]},
    "publish": "loopback",
    "files": {FILE: {"template": "options.yml.j2"}},
    "openai": {
        "served_name": "described",
        "command": [
            *("-m", f"{MODEL}/gpt-oss-120b-mxfp4-00001-of-00003.gguf", "--alias", "described", "--metrics"),
            *("--ctx-size", "65536", "--parallel", "2", "--host", "0.0.0.0", "--port", "8000"),
        ],
        "metrics": {
            "path": "/metrics",
            "generated": "llamacpp:tokens_predicted_total",
            "heartbeat": "llamacpp:n_decode_total",
            "running": "llamacpp:requests_processing",
        },
    },
}


@pytest.fixture
def described(project: SandboxProject, monkeypatch: pytest.MonkeyPatch) -> SandboxProject:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    (project.root / "recipes/described.yml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    (project.root / "templates/options.yml.j2").write_text("name: {{ served_name }}\n")
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: described")
    return project


def test_what_can_be_proved_is_and_the_rest_is_unknown(described: SandboxProject) -> None:
    result = described.deploy()
    assert result.proved, result.out[-3000:]
    assert "the memory need of the engine is unknown" in result.task("Check that it fits in memory")["msg"]
    assert "the memory need of the engine is unknown" in result.task("Check free memory")["msg"]
    assert result.task("Check the engine log")["data"]["verdict"] == "unknown"
    second_run = described.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0), second_run.out
    rows = described.run("verify", "--host", "sandbox", "--json").task("Summarize the checks")["data"]["rows"]
    verdicts = {row["check"]: row["verdict"] for row in rows}
    assert (verdicts["generates"], verdicts["GPU"]) == ("proved", "proved")
    assert (verdicts["its own log"], verdicts["prefix cache"]) == ("unknown", "unknown")
    assert described.run("health.check", "--host", "sandbox").code == 0


def test_a_file_is_in_the_plan_with_its_content_and_another_content_is_a_swap(described: SandboxProject) -> None:
    planned = described.run("plan", "--host", "sandbox", "--json")
    assert planned.code == 2, planned.out
    assert described.deploy().proved
    described.edit("templates/options.yml.j2", "name:", "served:")
    output = described.run("plan", "--host", "sandbox", "--json").task("Compare running container with recipe")
    (change,) = output["diff"]
    assert (change["field"], change["before"], change["after"]) == (
        f"file {FILE}",
        "name: described\n",
        "served: described\n",
    )
    assert "served: described" not in json.dumps(output["data"]), "the history keeps no contents"
    result = described.deploy()
    assert result.proved, result.out[-3000:]
    assert result.task("Stop previous server, keep it for rollback")["status"] == "changed"


def test_an_expectation_that_it_cannot_be_asked_is_refused_before_any_host_is(described: SandboxProject) -> None:
    recipe = {**RECIPE, "expect": {"chunked_prefill": "disabled"}}
    (described.root / "recipes/described.yml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    result = described.run("deploy", "--host", "sandbox")
    assert result.code == 5
    assert "an OpenAI-compatible server has no switch for chunked_prefill" in result.out + result.err

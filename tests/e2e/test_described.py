"""`engine: openai` in the sandbox: the simulated llama-server, described by its recipe like an unknown engine."""

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
def described(project: SandboxProject) -> SandboxProject:
    (project.root / "recipes/described.yml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    (project.root / "templates/options.yml.j2").write_text("name: {{ served_name }}\n")
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: described")
    return project


def test_unsupported_checks_are_unknown_and_the_others_proved(described: SandboxProject) -> None:
    result = described.deploy()
    assert result.proved, result.out[-3000:]
    for task in ("Check that it fits in memory", "Check free memory"):
        assert "the memory need of the engine is unknown" in result.task(task)["msg"]
    assert result.task("Check the engine log")["data"]["verdict"] == "unknown"
    second_run = described.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0), second_run.out
    rows = described.run("verify", "--host", "sandbox", "--json").task("Summarize the checks")["data"]["rows"]
    verdicts = {row["check"]: row["verdict"] for row in rows}
    assert (verdicts["generates"], verdicts["GPU"]) == ("proved", "proved")
    assert (verdicts["its own log"], verdicts["prefix cache"]) == ("unknown", "unknown")
    assert described.run("health.check", "--host", "sandbox").code == 0


def test_a_plan_shows_changed_file_content_and_deploy_replaces_the_server(described: SandboxProject) -> None:
    planned = described.run("plan", "--host", "sandbox", "--json")
    assert planned.code == 2, planned.out
    assert described.deploy().proved
    described.edit("templates/options.yml.j2", "name:", "served:")
    compared = described.run("plan", "--host", "sandbox", "--json").task("Compare running container with recipe")
    (change,) = compared["diff"]
    assert change.items() >= {"field": f"file {FILE}", "before": "name: described\n"}.items()
    assert change["after"] == "served: described\n"
    assert "served: described" not in json.dumps(compared["data"]), "the history contains no file contents"
    result = described.deploy()
    assert result.proved, result.out[-3000:]
    assert result.task("Stop previous server, keep it for rollback")["status"] == "changed"


def test_an_expectation_that_the_engine_cannot_report_is_refused(described: SandboxProject) -> None:
    recipe = {**RECIPE, "expect": {"chunked_prefill": "disabled"}}
    (described.root / "recipes/described.yml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    result = described.run("deploy", "--host", "sandbox")
    assert result.code == 5
    assert "an OpenAI-compatible server has no switch for chunked_prefill" in result.out + result.err

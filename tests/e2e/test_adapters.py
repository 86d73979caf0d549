"""A recipe with LoRA adapters, from their pins to their removal: each is a model of the server, and answers by its name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from sparkwright.measure import http_probe
from tests.e2e.conftest import SandboxProject, sandbox_project

SQL, LAW = "sandbox-org/qwen3.5-35b-sql-lora", "sandbox-org/qwen3.5-35b-law-lora"
ADAPTERS = f"adapters:\n  - {{id: {SQL}, name: sql}}\n  - {{id: {LAW}, name: law}}\n\ncontainer:\n"
RECIPE = "recipes/qwen3.5-35b.yml"


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProject]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as project:
        project.edit(RECIPE, r"(?m)^container:.*\n", ADAPTERS)
        yield project


def test_they_are_pinned_fetched_mounted_served_by_name_proved_kept_and_moved_on_with(project: SandboxProject) -> None:
    deployed = project.deploy()
    assert deployed.code == 0, deployed.err + deployed.out
    lock = yaml.safe_load((project.sandbox / "spark.lock").read_text())["models"]
    entry = lock[f"{SQL}@main:adapter"]
    assert [file["path"] for file in entry["files"]] == ["adapter_config.json", "adapter_model.safetensors"]
    assert entry["adapter"]["base"] == "Qwen/Qwen3.5-35B-A3B"
    assert (entry["adapter"]["rank"], entry["adapter"]["layers"]) == (16, 40)
    assert entry["adapter"]["sizes"] == {"o_proj": [4096, 2048], "q_proj": [2048, 4096]}
    (container,) = project.docker().containers.list()
    command = container.attrs["Config"]["Cmd"]
    position = command.index("--lora-modules")
    assert command[position + 1 : position + 3] == ["sql=/adapters/sql", "law=/adapters/law"]
    assert "--enable-lora" in command
    assert any(
        bind.endswith("/models/adapters/sql:/adapters/sql:ro") for bind in container.attrs["HostConfig"]["Binds"]
    )
    for name in ("qwen3.5-35b", "sql", "law"):
        assert query_model(project, name)["model"] == name
    assert len({json.dumps(query_model(project, name)["choices"]) for name in ("qwen3.5-35b", "sql", "law")}) == 3
    health = deployed.task("Check that it generates")["msg"]
    assert "; sql: generates: 8 tokens" in health and "; law: generates: 8 tokens" in health
    assert deployed.task("Compare the reference text")["msg"].count("reference text") == 3
    assert project.run("plan", "--host", "sandbox").code == 0
    assert "adapters   sql, law: as `model` in requests" in project.run("client", "--host", "sandbox").out
    assert json.loads(project.run("client", "--host", "sandbox", "--json").out)["adapters"] == ["sql", "law"]
    assert (
        "# LoRA adapters, as `model` in requests: sql, law"
        in project.run("client", "--host", "sandbox", "--for", "codex").out
    )
    assert "adapters sql, law" in project.run("deploy", "--host", "sandbox").out
    listed = json.loads(project.run("models.list", "--host", "sandbox", "--json").out)
    assert {row["id"]: row["used_by"] for row in listed}[SQL] == ["qwen35"]
    assert "nothing to free" in project.run("models.prune", "--host", "sandbox", "--yes").out

    before = (project.sandbox / "home/models/adapters/sql/adapter_model.safetensors").read_bytes()
    project.run("sandbox.fault", "moved-model")
    updated = project.run("lock", "--host", "sandbox", "--update", SQL, "--yes")
    assert updated.code == 0, updated.err
    planned = project.run("plan", "--host", "sandbox", "--json")
    assert planned.code == 2, planned.err
    rows = planned.task("Compare running container with recipe")["diff"]
    assert [row["field"] for row in rows] == ["adapter sql revision"]
    assert project.deploy().code == 0
    assert (project.sandbox / "home/models/adapters/sql/adapter_model.safetensors").read_bytes() != before
    rolled = project.run("rollback", "--host", "sandbox")
    assert rolled.code == 0, rolled.err + rolled.out
    assert (project.sandbox / "home/models/adapters/sql/adapter_model.safetensors").read_bytes() == before
    assert query_model(project, "sql")["model"] == "sql"


def query_model(project: SandboxProject, model: str) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
    response = http_probe.send_request(
        f"http://127.0.0.1:{project.port}", "/v1/chat/completions", body=body, timeout_s=20
    )
    assert response.status == 200, response.body
    return dict(response.json())


BAD = {
    "another base model": ("llama-3.1-8b-lora", "its o_proj has 4096 outputs, the model's has 2048"),
    "too wide": ("qwen3.5-35b-wide-lora", "rank 64, but max-lora-rank is 16"),
    "DoRA": ("qwen3.5-35b-dora", "sets use_dora in adapter_config.json, which vLLM does not support"),
}


def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_touched(project: SandboxProject) -> None:
    recipe = project.root / RECIPE
    original = recipe.read_text()
    for repository, sentence in BAD.values():
        recipe.write_text(original.replace(SQL, f"sandbox-org/{repository}"))
        refused = project.deploy()
        assert refused.code == 5 and sentence in refused.err + refused.out, refused.err + refused.out
    recipe.write_text(original.replace(SQL, "Qwen/Qwen3-1.7B"))
    refused = project.deploy()
    assert refused.code == 5, refused.out
    assert "Qwen/Qwen3-1.7B is not a LoRA adapter: it has no adapter_config.json" in refused.err + refused.out
    assert not project.docker().containers.list(all=True)


@pytest.fixture
def without_adapters(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProject]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as project:
        yield project


def test_sglang_serves_one_behind_the_served_name(without_adapters: SandboxProject) -> None:
    """Under the adapter's name alone the model without it answers, as a real one does: that name is not served."""
    sql = "adapters: [{id: sandbox-org/qwen3.8-27b-sql-lora, name: sql}]\ncontainer:\n"
    without_adapters.edit("recipes/examples/qwen3.8-27b-sglang.yml", r"(?m)^container:\n", sql)
    without_adapters.edit("hosts/sandbox.yml", "recipe: .*", "recipe: examples/qwen3.8-27b-sglang")
    deployed = without_adapters.deploy()
    assert deployed.code == 0, deployed.err + deployed.out[-3000:]
    assert "; qwen3.8-27b:sql: generates: 8 tokens" in deployed.task("Check that it generates")["msg"]
    assert deployed.task("Compare the reference text")["msg"].count("recorded") == 2
    texts = {name: generate_text(without_adapters, name) for name in ("qwen3.8-27b", "qwen3.8-27b:sql", "sql")}
    assert texts["qwen3.8-27b"] == texts["sql"] != texts["qwen3.8-27b:sql"]


def test_llama_cpp_serves_one_as_the_whole_server_and_refuses_another_architecture(
    without_adapters: SandboxProject,
) -> None:
    recipe = "recipes/gpt-oss-120b-gguf.yml"
    row = "adapters: [{id: sandbox-org/llama-8b-sql-lora-GGUF, name: gpt-oss-120b, file: '*.gguf'}]\ncontainer:\n"
    without_adapters.edit(recipe, r"(?m)^container:\n", row)
    without_adapters.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    refused = without_adapters.deploy()
    assert refused.code == 5 and "its architecture is llama, the model's is gpt-oss" in refused.out, refused.out
    without_adapters.edit(recipe, "llama-8b-sql-lora-GGUF", "gpt-oss-120b-sql-lora-GGUF")
    deployed = without_adapters.deploy()
    assert deployed.code == 0, deployed.err + deployed.out[-3000:]
    (container,) = without_adapters.docker().containers.list()
    command = container.attrs["Config"]["Cmd"]
    assert command[command.index("--lora") + 1] == "/adapters/gpt-oss-120b/gpt-oss-120b-sql-lora-f16.gguf"


def generate_text(project: SandboxProject, model: str) -> str:
    return str(query_model(project, model)["choices"][0]["message"]["content"])

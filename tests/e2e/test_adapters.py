"""A recipe with LoRA adapters, from their pins to their removal: each adapter is served as a model under its name."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.measure import http_probe
from tests.e2e.conftest import SandboxProject

SQL, LAW = "sandbox-org/qwen3.5-35b-sql-lora", "sandbox-org/qwen3.5-35b-law-lora"
ADAPTERS = f"adapters:\n  - {{id: {SQL}, name: sql}}\n  - {{id: {LAW}, name: law}}\n\ncontainer:\n"
RECIPE = "recipes/qwen3.5-35b.yml"
NAMES = ("qwen3.5-35b", "sql", "law")


def read_sql_weights(folder: Path) -> bytes:
    """Return the adapter in the folder of a simulated host."""
    return (folder / "home/models/adapters/sql/adapter_model.safetensors").read_bytes()


def test_adapters_are_pinned_downloaded_served_by_name_kept_and_updated(project: SandboxProject) -> None:
    project.edit(RECIPE, r"(?m)^container:.*\n", ADAPTERS)
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
    assert len({generate_text(project.port, name) for name in NAMES}) == 3
    health = deployed.task("Check that it generates")["msg"]
    assert "; sql: generates: 8 tokens" in health and "; law: generates: 8 tokens" in health
    assert deployed.task("Compare the reference text")["msg"].count("reference text") == 3
    assert project.run("plan", "--host", "sandbox").code == 0
    assert "adapters   sql, law: as `model` in requests" in project.run("client", "--host", "sandbox").out
    assert json.loads(project.run("client", "--host", "sandbox", "--json").out)["adapters"] == ["sql", "law"]
    codex_settings = project.run("client", "--host", "sandbox", "--for", "codex").out
    assert "# LoRA adapters, as `model` in requests: sql, law" in codex_settings
    assert "adapters sql, law" in project.run("deploy", "--host", "sandbox").out
    listed = json.loads(project.run("models.list", "--host", "sandbox", "--json").out)
    assert {row["id"]: row["used_by"] for row in listed}[SQL] == ["qwen35"]
    assert "nothing to free" in project.run("models.prune", "--host", "sandbox", "--yes").out

    before = read_sql_weights(project.sandbox)
    project.run("sandbox.fault", "moved-model")
    updated = project.run("lock", "--host", "sandbox", "--update", SQL, "--yes")
    assert updated.code == 0, updated.err
    planned = project.run("plan", "--host", "sandbox", "--json")
    assert planned.code == 2, planned.err
    rows = planned.task("Compare running container with recipe")["diff"]
    assert [row["field"] for row in rows] == ["adapter sql revision"]
    assert project.deploy().code == 0
    assert read_sql_weights(project.sandbox) != before
    rolled = project.run("rollback", "--host", "sandbox")
    assert rolled.code == 0, rolled.err + rolled.out
    assert read_sql_weights(project.sandbox) == before
    assert generate_text(project.port, "sql")


def generate_text(port: int, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
    response = http_probe.send_request(f"http://127.0.0.1:{port}", "/v1/chat/completions", body=body, timeout_s=20)
    assert response.status == 200, response.body
    answer: dict[str, Any] = response.json()
    assert answer["model"] == model
    return json.dumps(answer["choices"])  # the text may still be reasoning


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        ("sandbox-org/llama-3.1-8b-lora", "its o_proj has 4096 outputs, the model's has 2048"),
        ("sandbox-org/qwen3.5-35b-wide-lora", "rank 64, but max-lora-rank is 16"),
        ("sandbox-org/qwen3.5-35b-dora", "sets use_dora in adapter_config.json, which vLLM does not support"),
        ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-1.7B is not a LoRA adapter: it has no adapter_config.json"),
    ],
    ids=["another base model", "rank too high", "DoRA", "complete model"],
)
def test_an_unsuitable_adapter_is_refused(project: SandboxProject, repository: str, message: str) -> None:
    project.edit(RECIPE, r"(?m)^container:.*\n", ADAPTERS.replace(SQL, repository))
    refused = project.deploy()
    assert refused.code == 5 and message in refused.err + refused.out, refused.err + refused.out
    assert project.containers() == []


def test_sglang_serves_an_adapter_as_model_and_adapter_name(project: SandboxProject) -> None:
    """Like the real engine, it answers requests for the adapter's name alone with the base model."""
    sql = "adapters: [{id: sandbox-org/qwen3.8-27b-sql-lora, name: sql}]\ncontainer:\n"
    project.edit("recipes/examples/qwen3.8-27b-sglang.yml", r"(?m)^container:\n", sql)
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: examples/qwen3.8-27b-sglang")
    deployed = project.deploy()
    assert deployed.code == 0, deployed.err + deployed.out[-3000:]
    assert "; qwen3.8-27b:sql: generates: 8 tokens" in deployed.task("Check that it generates")["msg"]
    assert deployed.task("Compare the reference text")["msg"].count("recorded") == 2
    texts = {name: generate_text(project.port, name) for name in ("qwen3.8-27b", "qwen3.8-27b:sql", "sql")}
    assert texts["qwen3.8-27b"] == texts["sql"] != texts["qwen3.8-27b:sql"]


def test_llama_cpp_serves_an_adapter_as_its_only_model_and_refuses_another_architecture(
    project: SandboxProject,
) -> None:
    recipe = "recipes/gpt-oss-120b-gguf.yml"
    row = "adapters: [{id: sandbox-org/llama-8b-sql-lora-GGUF, name: gpt-oss-120b, file: '*.gguf'}]\ncontainer:\n"
    project.edit(recipe, r"(?m)^container:\n", row)
    project.edit("hosts/sandbox.yml", "recipe: .*", "recipe: gpt-oss-120b-gguf")
    refused = project.deploy()
    assert refused.code == 5 and "its architecture is llama, the model's is gpt-oss" in refused.out, refused.out
    project.edit(recipe, "llama-8b-sql-lora-GGUF", "gpt-oss-120b-sql-lora-GGUF")
    deployed = project.deploy()
    assert deployed.code == 0, deployed.err + deployed.out[-3000:]
    (container,) = project.docker().containers.list()
    command = container.attrs["Config"]["Cmd"]
    assert command[command.index("--lora") + 1] == "/adapters/gpt-oss-120b/gpt-oss-120b-sql-lora-f16.gguf"

"""A recipe with a draft model, from its pin to its removal: it is handled like the main model."""

import json

import yaml

from tests.e2e.conftest import SandboxProject

DRAFT = "Qwen/Qwen3-1.7B"
MODELS = "models:\n  draft: {id: Qwen/Qwen3-1.7B, dir: ~/models/draft, mount: /models/draft}\n\ncontainer:\n"
CONFIG = "vllm:\n  speculative-config: {method: draft_model, num_speculative_tokens: 2}\n"


def test_a_draft_model_is_pinned_downloaded_mounted_kept_and_updated(project: SandboxProject) -> None:
    project.edit("recipes/qwen3.5-35b.yml", r"(?m)^container:.*\n", MODELS)
    project.edit("recipes/qwen3.5-35b.yml", r"(?m)^vllm:.*\n", CONFIG)
    deployed = project.deploy()
    assert deployed.code == 0, deployed.err + deployed.out
    lock = yaml.safe_load((project.sandbox / "spark.lock").read_text())["models"]
    assert len(lock[f"{DRAFT}@main:draft"]["files"]) == 19
    (container,) = project.docker().containers.list()
    command = container.attrs["Config"]["Cmd"]
    config = json.loads(command[command.index("--speculative-config") + 1])
    assert config["model"] == "/models/draft"
    assert any(bind.endswith("/models/draft:/models/draft:ro") for bind in container.attrs["HostConfig"]["Binds"])
    assert project.run("plan", "--host", "sandbox").code == 0
    listed = json.loads(project.run("models.list", "--host", "sandbox", "--json").out)
    assert {row["id"]: row["used_by"] for row in listed}[DRAFT] == ["qwen35"]
    assert "nothing to free" in project.run("models.prune", "--host", "sandbox", "--yes").out

    project.run("sandbox.fault", "moved-model")
    updated = project.run("lock", "--host", "sandbox", "--update", DRAFT, "--yes")
    assert updated.code == 0, updated.err
    planned = project.run("plan", "--host", "sandbox", "--json")
    assert planned.code == 2, planned.err
    changed_fields = {row["field"] for row in planned.task("Download additional models and verify every file")["diff"]}
    assert "draft: model-00001-of-00014.safetensors" in changed_fields
    rows = planned.task("Compare running container with recipe")["diff"]
    assert [row["field"] for row in rows] == ["draft model revision"]

"""`recipe.export`: what another tool is given is pinned, holds no key, and comes back as the same recipe."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sparkwright.project import export_formats, recipe, starter
from tests import commands
from tests.project.importing.forms import import_recipe

DIGEST, COMMIT = "sha256:" + "c" * 64, "d" * 40
RECIPE = """
image: vllm/vllm-openai:v0.32.0
model: {id: acme/Tiny, dir: ~/models/tiny, mount: /models/tiny}
server_key: {env: SPARK_KEY}
container: {name: tiny, ports: ["8001:8000"], shm_size: 16gb, env: {A: "it's $5"}, ulimits: {memlock: "-1"}, gpus: "device=0"}
vllm: {served-model-name: tiny, default-chat-template-kwargs: {enable_thinking: false}, kv-cache-dtype: fp8, max-num-seqs: 4}
"""
WRITERS = {
    "sparkrun": export_formats.render_sparkrun,
    "compose": export_formats.render_compose,
    "docker-run": export_formats.render_docker_run,
}


@pytest.fixture
def exported(tmp_path: Path) -> export_formats.Export:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/tiny.yml").write_text(RECIPE)
    return export_formats.build_export(
        recipe.load(tmp_path, "tiny"), {"image": {"digest": DIGEST}, "model": {"commit": COMMIT}}
    )


@pytest.mark.parametrize("form", WRITERS)
def test_it_is_pinned_holds_no_key_and_comes_back_as_the_same(form: str, exported: export_formats.Export) -> None:
    text = WRITERS[form](exported)
    assert f"vllm/vllm-openai:v0.32.0@{DIGEST}" in text and "SPARK_KEY" not in text and "sparkwright" not in text
    assert any("server_key" in note for note in exported.notes)
    back = import_recipe(
        text.replace('"$HOME"', "~"), name="tiny", **({} if form == "sparkrun" else {"model": "acme/Tiny"})
    )
    actual, expected = yaml.safe_load(back.text), yaml.safe_load(RECIPE)
    assert actual["vllm"] == expected["vllm"]
    assert actual["container"]["ports"] == ["8001:8000"] and back.image_digest == DIGEST
    assert actual["container"]["env"] == {"A": "it's $5"}
    assert actual["model"] == {**expected["model"], **({"revision": COMMIT} if form == "sparkrun" else {})}


def test_a_shell_reads_the_docker_line_as_it_is_meant(exported: export_formats.Export) -> None:
    line = export_formats.render_docker_run(exported).replace("docker run", "printf '%s\\n'", 1)
    result = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=True, timeout=20, env={"HOME": "/home/me"}
    )
    words = result.stdout.splitlines()
    assert (
        "/home/me/models/tiny:/models/tiny:ro" in words
        and "A=it's $5" in words
        and '{"enable_thinking":false}' in words
    )


def test_a_cluster_goes_to_sparkrun_with_its_number_of_hosts_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    text = RECIPE.replace(', ports: ["8001:8000"]', "").replace("server_key: {env: SPARK_KEY}", "parallel: {tensor: 2}")
    (tmp_path / "recipes/pair.yml").write_text(text)
    export = export_formats.build_export(recipe.load(tmp_path, "pair"), {"image": None, "model": None})
    data = yaml.safe_load(export_formats.render_sparkrun(export))
    assert data["min_nodes"] == 2 and "--tensor-parallel-size {tensor_parallel}" in data["command"]
    assert yaml.safe_load(import_recipe(export_formats.render_sparkrun(export)).text)["parallel"] == {"tensor": 2}
    with pytest.raises(Exception, match="its own container"):
        export_formats.render_compose(export)


def test_the_command_refuses_what_is_not_pinned_unless_told(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    refused = commands.run("recipe.export", "qwen3.5-35b", cwd=tmp_path)
    assert refused.returncode == 5 and "no entry for the image and model" in refused.stderr and not refused.stdout
    result = commands.run(
        "recipe.export", "qwen3.5-35b", "--format", "docker-run", "--unpinned", "--json", cwd=tmp_path
    )
    assert shlex.split(json.loads(result.stdout)["text"])[:2] == ["docker", "run"]
    assert commands.run("recipe.export", "qwen3.5-35b", "--format", "podman", cwd=tmp_path).returncode == 5
    if shutil.which("docker"):
        text = commands.run("recipe.export", "qwen3.5-35b", "--format", "compose", "--unpinned", cwd=tmp_path).stdout
        assert yaml.safe_load(text)["services"]["qwen35"]["image"] == "vllm/vllm-openai:v0.32.0"

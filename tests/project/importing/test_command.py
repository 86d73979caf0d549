"""The command `recipe.import`: questions on a terminal or in a list; the written recipe passes lint and can be rendered."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright.project import starter
from tests import commands, published
from tests.project.importing.forms import EUGR, SPARKRUN_2, VLLM

SPARKWRIGHT = Path(sys.executable).parent / "sparkwright"
WITH_QUESTION = VLLM.replace("dgx_spark_gb10:\n", "h100:\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    starter.write_starter(tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/tiny.yaml").write_text(VLLM)
    (tmp_path / "theirs/ambiguous.yaml").write_text(WITH_QUESTION)
    (tmp_path / "theirs/eugr.yaml").write_text(EUGR)
    return tmp_path


def test_written_recipe_passes_lint_and_renders(project: Path) -> None:
    result = commands.run("recipe.import", "theirs/tiny.yaml", "--name", "tiny", cwd=project)
    assert result.returncode == 0, result.stderr
    assert "recipes/tiny.yml written." in result.stdout and "0 errors" in result.stdout
    assert commands.run("lint", "--recipe", "tiny", cwd=project).returncode == 0
    completed = commands.run("render", "--host", "sandbox", "--recipe", "tiny", cwd=project)
    assert "--kv-cache-dtype fp8" in completed.stdout.replace("\\\n", "").replace("  ", " "), completed.stderr
    again = commands.run("recipe.import", "theirs/tiny.yaml", "--name", "tiny", cwd=project)
    assert again.returncode == 5 and "already exists" in again.stderr


def test_proposed_group_of_several_hosts_is_valid(project: Path) -> None:
    for n in (1, 2):
        fabric = f"fabric: {{interfaces: [a1], address: 10.0.0.{n}}}"
        (project / f"hosts/spark{n}.yml").write_text(f"address: spark{n}.local\n{fabric}\n")
    answers = ("--answer", "image=vllm/vllm-openai:v0.32.0", "--name", "both")
    result = commands.run("recipe.import", "theirs/eugr.yaml", *answers, cwd=project)
    assert result.returncode == 0, result.stderr
    proposed = result.stdout[result.stdout.index("  both:") : result.stdout.index("then ")]
    assert "hosts: [spark1, spark2]" in proposed
    groups = project / "hosts/groups.yml"
    groups.write_text(groups.read_text() + "".join(f"{line[2:]}\n" for line in proposed.splitlines()))
    rendered = commands.run("render", "--host", "both", cwd=project)
    assert rendered.returncode == 0 and "--node-rank 1" in " ".join(rendered.stdout.split()), rendered.stderr


def test_host_option_pins_image_and_model(project: Path) -> None:
    image = "vllm/vllm-openai:v0.32.0"
    text = SPARKRUN_2.replace("ghcr.io/acme/vllm:latest", image)
    (project / "theirs/unknown.yaml").write_text(text)
    known = text.replace("acme/Tiny-30B-FP8", "Qwen/Qwen3-1.7B").replace(image, f"{image}@sha256:{'0' * 64}")
    (project / "theirs/known.yaml").write_text(known)
    try:
        result, unknown = (
            commands.run("recipe.import", f"theirs/{name}.yaml", "--name", name, "--host", "sandbox", cwd=project)
            for name in ("known", "unknown")
        )
        lock = (project / ".sandbox/spark.lock").read_text()
    finally:
        commands.run("sandbox.down", cwd=project)
    assert result.returncode == 0, result.stderr
    lock_name = "the sandbox's own lock, not in spark.lock"
    assert f"image {image}: pinned in {lock_name}: sha256:" in result.stdout
    assert "the source pins sha256:000000000000" in result.stdout
    assert f"model Qwen/Qwen3-1.7B@main: pinned in {lock_name}: commit" in result.stdout
    assert image in lock and "Qwen/Qwen3-1.7B" in lock
    assert unknown.returncode == 0, unknown.stderr
    assert f"image {image}: pinned in {lock_name}: unchanged" in unknown.stdout
    assert "model acme/Tiny-30B-FP8@main: not pinned: " in unknown.stdout
    assert "recipes/unknown.yml written." in unknown.stdout


def test_questions_are_listed_without_a_terminal(project: Path) -> None:
    result = commands.run("recipe.import", "theirs/ambiguous.yaml", cwd=project)
    assert result.returncode == 5
    assert "--answer variant=default|nvfp4" in result.stderr
    assert not list((project / "recipes").glob("tiny*"))
    output = commands.run("recipe.import", "theirs/ambiguous.yaml", "--json", cwd=project).stdout
    assert published.check_output("recipe.import", output) == []
    assert [question["key"] for question in json.loads(output.splitlines()[0])["questions"]] == ["variant"]


def test_questions_are_asked_on_a_terminal(project: Path) -> None:
    terminal, child_end = pty.openpty()
    with subprocess.Popen(
        [SPARKWRIGHT, "recipe.import", "theirs/ambiguous.yaml"],
        cwd=project,
        stdin=child_end,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.write(terminal, b"nonsense\nnvfp4\n")
        out, err = process.communicate(timeout=60)
    os.close(terminal)
    os.close(child_end)
    assert process.returncode == 0, err
    assert err.count("which checkpoint") == 2
    assert "tiny-30b-nvfp4.yml written." in out


def test_check_prints_the_recipe_and_writes_nothing(project: Path) -> None:
    command = "docker run -p 8000:8000 vllm/vllm-openai:v0.32.0 --model acme/Tiny"
    result = commands.run("recipe.import", command, "--check", cwd=project)
    assert result.returncode == 0 and "id: acme/Tiny" in result.stdout, result.stderr
    assert not (project / "recipes/tiny.yml").exists()


@pytest.mark.parametrize(
    "source", ["https://example.org/recipe.yaml", "nowhere.yaml", "theirs", "recipes/qwen3.5-35b.yml"]
)
def test_invalid_source_is_refused(project: Path, source: str) -> None:
    result = commands.run("recipe.import", source, cwd=project)
    assert result.returncode == 5, result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr

"""`recipe.import` as a user types it: questions on a terminal, a list without one; the result passes lint and plan."""

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
    (tmp_path / "theirs/asked.yaml").write_text(WITH_QUESTION)
    (tmp_path / "theirs/eugr.yaml").write_text(EUGR)
    return tmp_path


def test_what_it_writes_passes_lint_and_a_plan_renders_it(project: Path) -> None:
    result = commands.run("recipe.import", "theirs/tiny.yaml", "--name", "tiny", cwd=project)
    assert result.returncode == 0, result.stderr
    assert "recipes/tiny.yml written." in result.stdout and "0 errors" in result.stdout
    assert commands.run("lint", "--recipe", "tiny", cwd=project).returncode == 0
    completed = commands.run("render", "--host", "sandbox", "--recipe", "tiny", cwd=project)
    assert "--kv-cache-dtype fp8" in completed.stdout.replace("\\\n", "").replace("  ", " "), completed.stderr
    again = commands.run("recipe.import", "theirs/tiny.yaml", "--name", "tiny", cwd=project)
    assert again.returncode == 5 and "already exists" in again.stderr


def test_for_several_hosts_the_group_is_proposed_and_the_project_takes_it(project: Path) -> None:
    (project / "hosts/spark2.yml").write_text("address: spark2.local\nfabric: {interfaces: [a1], address: 10.0.0.2}\n")
    own = project / "hosts/spark1.yml"
    own.write_text("address: spark1.local\nfabric: {interfaces: [a1], address: 10.0.0.1}\n")
    answers = ("--answer", "image=vllm/vllm-openai:v0.32.0", "--name", "both")
    result = commands.run("recipe.import", "theirs/eugr.yaml", *answers, cwd=project)
    assert result.returncode == 0, result.stderr
    proposed = result.stdout[result.stdout.index("  both:") : result.stdout.index("then ")]
    assert "hosts: [spark1, spark2]" in proposed
    groups = project / "hosts/groups.yml"
    groups.write_text(groups.read_text() + "".join(f"{line[2:]}\n" for line in proposed.splitlines()))
    rendered = commands.run("render", "--host", "both", cwd=project)
    assert rendered.returncode == 0 and "--node-rank 1" in " ".join(rendered.stdout.split()), rendered.stderr


def test_a_host_that_is_named_pins_it_at_once_and_says_what_it_could_not_pin(project: Path) -> None:
    (project / "theirs/known.yaml").write_text(
        SPARKRUN_2.replace("acme/Tiny-30B-FP8", "Qwen/Qwen3-1.7B").replace(
            "ghcr.io/acme/vllm:latest", f"vllm/vllm-openai:v0.32.0@sha256:{'0' * 64}"
        )
    )
    (project / "theirs/unknown.yaml").write_text(
        SPARKRUN_2.replace("ghcr.io/acme/vllm:latest", "vllm/vllm-openai:v0.32.0")
    )
    try:
        result = commands.run("recipe.import", "theirs/known.yaml", "--name", "known", "--host", "sandbox", cwd=project)
        unknown = commands.run(
            "recipe.import", "theirs/unknown.yaml", "--name", "unknown", "--host", "sandbox", cwd=project
        )
        lock = (project / ".sandbox/spark.lock").read_text()
    finally:
        commands.run("sandbox.down", cwd=project)
    assert result.returncode == 0, result.stderr
    own = "the sandbox's own lock, not in spark.lock"
    assert f"image vllm/vllm-openai:v0.32.0: pinned in {own}: sha256:" in result.stdout
    assert "the source pins sha256:000000000000" in result.stdout
    assert f"model Qwen/Qwen3-1.7B@main: pinned in {own}: commit" in result.stdout
    assert "vllm/vllm-openai:v0.32.0" in lock and "Qwen/Qwen3-1.7B" in lock
    assert unknown.returncode == 0, unknown.stderr
    assert f"image vllm/vllm-openai:v0.32.0: pinned in {own}: unchanged" in unknown.stdout
    assert (
        "model acme/Tiny-30B-FP8@main: not pinned: " in unknown.stdout
        and "recipes/unknown.yml written." in unknown.stdout
    )


def test_without_a_terminal_every_question_is_listed_and_nothing_written(project: Path) -> None:
    result = commands.run("recipe.import", "theirs/asked.yaml", cwd=project)
    assert result.returncode == 5
    assert "--answer variant=default|nvfp4" in result.stderr
    assert not list((project / "recipes").glob("tiny*"))
    options = commands.run("recipe.import", "theirs/asked.yaml", "--json", cwd=project).stdout
    row = json.loads(options.splitlines()[0])
    assert published.check_output("recipe.import", options) == []
    assert [question["key"] for question in row["questions"]] == ["variant"]


def test_on_a_terminal_it_is_asked(project: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [SPARKWRIGHT, "recipe.import", "theirs/asked.yaml"],
        cwd=project,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        os.write(ours, b"nonsense\nnvfp4\n")
        out, err = running.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert running.returncode == 0, err
    assert err.count("which checkpoint") == 2
    assert "tiny-30b-nvfp4.yml written." in out


def test_a_dry_run_prints_and_writes_nothing(project: Path) -> None:
    line = "docker run -p 8000:8000 vllm/vllm-openai:v0.32.0 --model acme/Tiny"
    result = commands.run("recipe.import", line, "--check", cwd=project)
    assert result.returncode == 0 and "id: acme/Tiny" in result.stdout, result.stderr
    assert not (project / "recipes/tiny.yml").exists()


@pytest.mark.parametrize(
    "source", ["https://example.org/recipe.yaml", "nowhere.yaml", "theirs", "recipes/qwen3.5-35b.yml"]
)
def test_a_source_that_is_none_gets_a_sentence(project: Path, source: str) -> None:
    result = commands.run("recipe.import", source, cwd=project)
    assert result.returncode == 5 and "Traceback" not in result.stderr and len(result.stderr.splitlines()) == 1, (
        result.stderr
    )

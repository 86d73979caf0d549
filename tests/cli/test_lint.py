"""The output of `lint` about a project's recipes."""

import re
from pathlib import Path

from sparkwright.project import starter
from tests import commands

RECIPE = "recipes/qwen3.5-35b.yml"


def test_unchanged_recipes_are_summarized_and_an_edited_one_is_reported(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    fresh = commands.run("lint", cwd=tmp_path)
    assert fresh.returncode == 0 and re.match(r"(\d+) recipes: 0 errors, 0 warnings; \1 as shipped", fresh.stdout)
    assert "thinking is on" not in fresh.stdout
    assert "thinking is on" in commands.run("lint", "--verbose", cwd=tmp_path).stdout
    path = tmp_path / RECIPE
    path.write_text(path.read_text().replace("max-num-seqs: 8", "max-num-seqs: 7"))
    edited = commands.run("lint", cwd=tmp_path).stdout
    assert f"{RECIPE}:" in edited and "recipes/gpt-oss-120b.yml" not in edited


def test_example_is_checked_if_a_host_serves_it(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    assert "frozen" not in commands.run("lint", "--verbose", cwd=tmp_path).stdout
    (tmp_path / "hosts/spark1.yml").write_text("address: spark1\nrecipe: examples/qwen3.5-35b-frozen\n")
    example = commands.run("lint", cwd=tmp_path)
    assert "recipes/examples/qwen3.5-35b-frozen.yml" in example.stdout


def test_engine_version_without_a_recipe_applies_to_vllm_only(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    result = commands.run("lint", "--engine-version", "0.32.0", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^qwen3.5-35b: .*, vLLM 0.32.0$", result.stdout, re.M)
    assert re.search(r"^gpt-oss-120b-gguf: .*, engine version unknown", result.stdout, re.M)
    named = commands.run("lint", "--recipe", "gpt-oss-120b-gguf", "--engine-version", "0.32.0", cwd=tmp_path)
    assert named.returncode == 5 and named.stderr.startswith("'0.32.0' is not a version of llama.cpp.")

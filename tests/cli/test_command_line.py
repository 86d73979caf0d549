"""A mistake on the command line is one sentence with the word that was meant, exit code 5, and nothing is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright import starter

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lab")
    starter.lay(made)
    return made


def call(folder: Path, line: str, program: str = "sparkwright") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / program, *line.split()], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("program", ["sparkwright", "invoke"])
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("deploi", "unknown command 'deploi'. Did you mean deploy?"),
        ("frobnicate --help", "unknown command 'frobnicate'. See --list."),
        ("deploy sandbox", "unexpected argument 'sandbox'. Did you mean deploy --host sandbox?"),
        ("deploy --hst x", "unknown option --hst. Did you mean --host?"),
        ("deploy --hst=x", "unknown option --hst. Did you mean --host?"),
        ("deploy --canary x --host sandbox", "--canary must be a number, got 'x'."),
        ("logs --host sandbox --tail x", "--tail must be a number, got 'x'."),
        ("deploy --host", "--host needs a value."),
        ("deploy --dry --host sandbox", "unknown option --dry. Did you mean --dry-run (the same as --check)?"),
        ("model.inspect", "model.inspect needs SOURCE: model.inspect --help."),
    ],
)
def test_a_mistake_is_a_sentence_and_refused(folder: Path, program: str, line: str, sentence: str) -> None:
    done = call(folder, line, program)
    assert (done.returncode, done.stderr.strip()) == (5, sentence)
    assert not done.stdout and not (folder / ".sandbox").exists()


@pytest.mark.parametrize("line", ["play --help", "model.inspect --help", "explain -h", "deploy --help"])
def test_help_is_help_where_a_word_is_expected_too(folder: Path, line: str) -> None:
    done = call(folder, line)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: sparkwright [--core-opts] {line.split()[0]} ")


def test_help_into_a_closed_pipe_ends_quietly(folder: Path) -> None:
    line = f"{BIN / 'sparkwright'} --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_home_that_is_a_file_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    env = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        [BIN / "sparkwright", "hosts"], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (1, f"{home}/.invoke.yaml: Not a directory.")


def test_a_terminal_of_ascii_gets_escapes(tmp_path: Path) -> None:
    starter.lay(tmp_path)
    recipe = tmp_path / "recipes/qwen3.5-35b.yml"
    recipe.write_text(recipe.read_text().replace("ipc: host", "ipc: host\n  env: {GREETING: grüß}"))
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    line = [BIN / "sparkwright", "render", "--host", "sandbox"]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "gr\\xfc\\xdf" in done.stdout


def test_init_keeps_what_commands_leave_out_of_git_and_a_gitignore_as_it_is(folder: Path, tmp_path: Path) -> None:
    assert ".sandbox/" in (folder / ".gitignore").read_text().splitlines()
    assert "spark.lock" not in (folder / ".gitignore").read_text()
    (tmp_path / ".gitignore").write_text("mine\n")
    starter.lay(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"

"""The start of a command: the user's invoke.yaml is read, and bytecode is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparkwright

TOP = Path(__file__).parents[3]


def test_an_invoke_yaml_of_the_users_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "invoke.yaml").write_text("run: {echo: true}\nmine: {words: [a, 1]}\n")
    program = "import sparkwright.cli; from invoke import Config; c = Config(project_location='.'); c.load_project(); "
    result = subprocess.run(
        [sys.executable, "-c", program + "print(c.run.echo, c.mine.words)"],
        capture_output=True,
        cwd=tmp_path,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "True ['a', 1]\n", result.stderr


@pytest.mark.parametrize(
    "program", [["-c", "from sparkwright.cli import main; main()"], ["-m", "invoke", "-r", str(TOP)]]
)
def test_what_python_compiles_is_kept_although_invoke_would_not(program: list[str], tmp_path: Path) -> None:
    """The module is first imported by a command; from a checkout every command would compile it again."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "kept")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [sys.executable, *program, "lint"], cwd=tmp_path, env=env, capture_output=True, timeout=60, check=False
    )
    kept = tmp_path / "kept" / Path(sparkwright.__file__).parent.relative_to("/") / "project/recipe"
    assert list(kept.glob("recipe.*.pyc"))

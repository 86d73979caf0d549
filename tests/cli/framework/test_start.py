"""The start of a command: the user's invoke.yaml is read, and bytecode is kept."""

import sys
from pathlib import Path

import pytest

import sparkwright
from tests import commands

TOP = Path(__file__).parents[3]


def test_users_invoke_yaml_is_read(tmp_path: Path) -> None:
    (tmp_path / "invoke.yaml").write_text("run: {echo: true}\nmine: {words: [a, 1]}\n")
    program = "import sparkwright.cli; from invoke import Config; c = Config(project_location='.'); c.load_project(); "
    result = commands.run_process(sys.executable, "-c", program + "print(c.run.echo, c.mine.words)", cwd=tmp_path)
    assert result.stdout == "True ['a', 1]\n", result.stderr


@pytest.mark.parametrize(
    "program", [["-c", "from sparkwright.cli import main; main()"], ["-m", "invoke", "-r", str(TOP)]]
)
def test_bytecode_is_kept_although_invoke_disables_it(
    program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every command from a checkout would compile again what it imports."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    commands.run_process(sys.executable, *program, "lint", cwd=tmp_path, PYTHONPYCACHEPREFIX=str(tmp_path / "kept"))
    folder = tmp_path / "kept" / Path(sparkwright.__file__).parent.relative_to("/") / "project/recipe"
    assert list(folder.glob("recipe.*.pyc"))

"""Speed-ups of a command's start, and that nothing depends on what they skip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparkwright

TOP = Path(__file__).parents[3]

PROGRAM = """
import sys
import sparkwright.cli
assert "asyncio" not in sys.modules and "unittest.mock" not in sys.modules, "imported for nothing"
from invoke import MockContext, Result
assert "invoke.vendor.yaml.loader" not in sys.modules, "PyYAML twice"
context = MockContext(run={"true": Result("said")})
assert context.run("true").stdout == "said"
context.run.assert_called_once_with("true")
"""


def test_a_command_starts_without_asyncio_and_a_mock_context_still_works() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


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

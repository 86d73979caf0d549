"""Idioms beyond their limits are refused by `make lint`, with file and line."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

IDIOMS = '''"""Where things are."""

class Host:
    """name, port: of the host. user: who logs in there."""

def names(hosts):
    return [one.name for one in hosts]
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a project with the tool, in which every limit is zero."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "src").mkdir()
    shutil.copy(TOP / "tools/voice.py", tmp_path / "tools/voice.py")
    tool = tmp_path / "tools/voice.py"
    before, _, rest = tool.read_text().partition("LIMITS = {")
    limits, _, after = rest.partition("}")
    zero = "".join(f"{line.rpartition(':')[0]}: 0,\n" if ":" in line else line for line in limits.splitlines())
    tool.write_text(f"{before}LIMITS = {{{zero}}}{after}")
    return tmp_path


def run_lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tools/voice.py"], cwd=tree, capture_output=True, text=True, check=False)


def test_plain_english_passes(tree: Path) -> None:
    text = '"""The inventory."""\n\nnames = [host.name for host in ()]  # there is no other\n'
    (tree / "src/hosts.py").write_text(text)
    assert run_lint(tree).returncode == 0


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("hosts.py", IDIOMS, "src/hosts.py:1: a docstring that begins with a question word: Where things are."),
        ("hosts.py", IDIOMS, "src/hosts.py:3: fields explained in a run of prose: Host"),
        ("hosts.py", IDIOMS, "src/hosts.py:7: a variable with a vague name: one"),
        ("host.py", '"""Of a host."""', "src/host.py:1: a docstring that begins with a bare preposition: Of a host."),
        ("host.py", "x = 1  # it is no host", 'src/host.py:1: the phrase "is no": x = 1  # it is no host'),
        ("host.py", '"""A host,\n\nmade anew."""', 'src/host.py:3: the phrase "anew": made anew."""'),
        ("asked.py", "", "src/asked.py:1: a module whose name is no noun: asked"),
    ],
)
def test_idiom_is_refused_with_its_location(tree: Path, file: str, text: str, expected: str) -> None:
    (tree / "src" / file).write_text(text)
    result = run_lint(tree)
    assert result.returncode == 1
    assert expected in result.stdout

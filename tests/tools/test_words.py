"""The retired words of docs/words.md are refused, with file, line and what to write instead."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

PAGE = """# Words

## Hosts

| term | used for | retired |
|---|---|---|
| peer | another host | `neighbour`, `the host next door` |
| fix | repair | |

## Names in the code

| name | used for | retired |
|---|---|---|
| `on_demand` | | `by_hand` |
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with the tool, a page of words and a folder for sources."""
    for folder in ("tools", "docs", "src"):
        (tmp_path / folder).mkdir()
    shutil.copy(TOP / "tools/words.py", tmp_path / "tools/words.py")
    (tmp_path / "docs/words.md").write_text(PAGE)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def run_lint(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "tools/words.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("docs/a.md", "A title\n\nA Neighbour sends it.\n", [3]),
        ("docs/a.md", "From the host\nnext door, and again from the host next  door.\n", [1, 2]),
        ("docs/a.md", "neighbourhood, the hosts next door\n", []),
        ("src/a.py", '"""Title.\n\nAsks the neighbour.\n"""\n', [3]),
        ("src/a.py", "x = 1  # the neighbour\n", [1]),
        ("src/a.py", 'x = 1\ny = f"no {x} neighbour"\n', [2]),
        ("src/a.py", "neighbour = 1\n", []),
        ("src/a.py", "def asked_by_hand() -> None: ...\n", [1]),
        ("src/a.py", "nearby_handle = 1\n", []),
        ("src/a.py", 'x = "by_hand"\n', []),
        ("src/a.py", 'x = "neighbour"  # words: data\n', []),
        ("elsewhere.md", "a neighbour\n", []),
    ],
)
def test_retired_word_is_refused_with_its_location(tree: Path, name: str, text: str, lines: list[int]) -> None:
    (tree / name).write_text(text)
    result = run_lint(tree)
    locations = [line.partition(": ")[0] for line in result.stdout.splitlines() if "is retired" in line]
    assert locations == [f"{name}:{line}" for line in lines], result.stderr
    assert result.returncode == bool(lines), result.stderr


def test_replacement_is_named(tree: Path) -> None:
    (tree / "docs/a.md").write_text("a neighbour\n")
    assert run_lint(tree).stdout == (
        "docs/a.md:1: 'neighbour' is retired; write: peer\n1 retired word (docs/words.md)\n"
    )


def test_source_tree_passes() -> None:
    result = run_lint(TOP)
    assert result.returncode == 0, result.stdout + result.stderr

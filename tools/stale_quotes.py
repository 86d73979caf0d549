"""List strings in tests and examples in docs that quote a message that src no longer contains: `stale_quotes.py BASE`.

Many tests that assert a message run only in the slow sets, so a changed message breaks them long after the commit. This compares
the strings of src at the revision BASE with those in the working tree, and looks for runs of three words that only the
old strings contain. A hit is a place to look at, not always a mistake. Exits with 1 if there is a hit.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WORDS_IN_A_ROW = 3
SOURCES = ("*.py", "*.j2", "*.yml", "*.json", "*.sh")
EXAMPLE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def read_strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each string literal of a Python module, without docstrings; an f-string gives its parts."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def list_phrases(text: str) -> set[str]:
    """Return all runs of three words in a text."""
    words = re.sub(r"\\(.)", r"\1", text).split()
    return {" ".join(words[start : start + WORDS_IN_A_ROW]) for start in range(len(words) - WORDS_IN_A_ROW + 1)}


def find_lost_phrases(base: str) -> set[str]:
    """Return the phrases that strings of src contained at the revision BASE, and that nothing in src contains today."""
    diff = ["git", "diff", "--name-only", base, "--", "src/*.py"]
    names = subprocess.run(diff, capture_output=True, text=True, check=True).stdout.split()
    old_files = (subprocess.run(["git", "show", f"{base}:{name}"], capture_output=True, text=True) for name in names)
    phrases = {
        phrase
        for old_file in old_files
        if old_file.returncode == 0
        for _, string in read_strings(old_file.stdout)
        for phrase in list_phrases(string)
    }
    for pattern in SOURCES:
        for path in Path("src").rglob(pattern):
            text = path.read_text("utf-8")
            phrases -= list_phrases(text)
            if path.suffix == ".py":
                phrases -= {phrase for _, string in read_strings(text) for phrase in list_phrases(string)}
    return phrases


def read_quotes(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each string in a test, or of each line of an example in a Markdown file."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        yield from read_strings(text)
        return
    for example in EXAMPLE.finditer(text):
        first_line = text.count("\n", 0, example.start()) + 1
        yield from enumerate(example.group().splitlines(), first_line)


def main(base: str) -> int:
    phrases = find_lost_phrases(base)
    paths = [
        *Path("tests").rglob("*.py"),
        *Path("benchmarks").rglob("*.py"),
        *Path("docs").rglob("*.md"),
        Path("README.md"),
    ]
    hits = [
        f"{path}:{line}: {', '.join(sorted(lost)[:3])}"
        for path in sorted(paths)
        for line, text in read_quotes(path)
        if (lost := list_phrases(text) & phrases)
    ]
    print("\n".join(hits))
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)

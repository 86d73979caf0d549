"""Refuse retired words: `make lint`. The tables in docs/words.md list them with their replacements.

.venv/bin/python tools/words.py    every use of a retired word, as file:line
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parent.parent
PAGE = Path("docs/words.md")
FOLDERS = ("src", "playbooks", "docs", "README.md", "templates", "recipes", "hosts")
ENDINGS = (".py", ".md", ".yml", ".j2", ".html", ".css", ".js")
#: heading of the table in words.md whose rows are about identifiers
NAMES = "Names in the code"
#: end of a line that contains a retired word as data; in a page, end of a comment on that line
DATA = "words: data"
#: pages with the output of an engine or a tool, copied from a run
COPIED = ("docs/engine-agreement.md",)
TEXT = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


@dataclass(frozen=True, slots=True)
class Word:
    """A retired phrase or identifier, and the term that is written instead."""

    text: str
    instead: str
    is_name: bool = False


def pattern(retired: list[Word], is_name: bool) -> re.Pattern[str]:
    """Return a pattern for whole words in any case, even across line ends; for identifiers, whole parts between underscores."""
    gap = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:# ?|\* )?)"
    texts = sorted((word.text for word in retired if word.is_name == is_name), key=len, reverse=True)
    choice = "|".join(gap.join(map(re.escape, text.split())) for text in texts) or r"(?!)"
    edge = r"[a-z0-9]" if is_name else r"\w"
    return re.compile(rf"(?<!{edge})(?:{choice})(?!{edge})", re.I)


def words(page: str) -> list[Word]:
    """Return every retired word in a page's tables, whose columns are `term | used for | retired`."""
    found, section = [], ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("| ").split("|")] if line.startswith("|") else []
        if len(cells) == 3:
            retired = re.findall(r"`([^`]+)`", cells[2])
            found += [Word(text.strip(), cells[0].replace("`", ""), section == NAMES) for text in retired]
    return found


def files(top: Path) -> list[Path]:
    """Return the files that git tracks or does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS]
    output = subprocess.run(command, cwd=top, capture_output=True, text=True, check=True).stdout
    names = [name for name in output.split("\n") if name.endswith(ENDINGS) and name not in (str(PAGE), *COPIED)]
    return [top / name for name in names if (top / name).is_file()]


def pieces(path: Path, text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each string, comment and name of a Python file, or the whole text of another: line, text, whether it is a name."""
    if path.suffix != ".py":
        yield 1, text, False
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in TEXT or token.type == tokenize.NAME:
            yield token.start[0], token.string, token.type == tokenize.NAME


class Reader:
    """Finds uses of the given retired words."""

    def __init__(self, retired: list[Word]) -> None:
        self.words = {(word.text.lower(), word.is_name): word for word in retired}
        self.patterns = {is_name: pattern(retired, is_name) for is_name in (False, True)}

    def findings(self, path: Path) -> Iterator[tuple[int, str, Word]]:
        """Yield the line, the text there, and the retired word that it contains."""
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for start, piece, is_name in pieces(path, text):
            for match in self.patterns[is_name].finditer(piece):
                line = start + piece.count("\n", 0, match.start())
                written = " ".join(re.sub(r"\n[ \t]*(# |\* )?", " ", match[0]).split())
                if not lines[line - 1].removesuffix(" -->").endswith(DATA):
                    yield line, written, self.words[written.lower(), is_name]


def main(top: Path = TOP) -> int:
    """Return 1 if a retired word is in use."""
    reader = Reader(words((top / PAGE).read_text(encoding="utf-8")))
    count = 0
    for path in files(top):
        for line, written, word in reader.findings(path):
            print(f"{path.relative_to(top)}:{line}: {written!r} is retired; write: {word.instead}")
            count += 1
    if count:
        print(f"{count} retired word{'s' if count > 1 else ''} ({PAGE})")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())

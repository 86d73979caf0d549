"""Refuse unidiomatic phrases and vague names: `make lint`. CONTRIBUTING.md has the house rules, docs/words.md the vocabulary.

.venv/bin/python tools/voice.py          the kinds that have more findings than the limit
.venv/bin/python tools/voice.py --all    every finding, as file:line
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parent.parent
#: kinds of tokens that contain sentences; since Python 3.12, f-strings have their own
PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
FOLDER = Path("src")
#: names that do not describe the variable's value
VAGUE = frozenset(
    (
        *(
            "one",
            "several",
            "asked",
            "told",
            "hears",
            "heard",
            "sight",
            "standing",
            "remembered",
            "said",
            "seat",
            "trip",
        ),
        *("begun", "chosen", "beside", "around", "lanes", "mend", "pace"),
    )
)
#: names that do not say what a function does; a property may be named by an adjective
VAGUE_FUNCTION = re.compile(
    r"_*(?!need|feed|seed|embed|exceed|proceed)(?:[a-z]+ed|shown|known|kept|made|taken|given|told|said|found|held|left|gone|seen|written"
    r"|drawn|built|sent|spoken|chosen|broken|begun|driven|one|several|about|around|beside|between|without|there|here)"
)
PROPERTIES = frozenset(("property", "cached_property", "setter"))
QUESTION = re.compile(r"(What|Who|Whom|Whose|Where|Whether|How|When|Why|Which|From|Of|To|That|If)\b")
PARTICIPLE = re.compile(r"(ed|en|ing|old|awake|asleep|live|together|present)$")
#: the meanings of two fields in one paragraph
FIELDS_IN_PROSE = re.compile(r"\b[a-z_]+(?:, [a-z_]+)*: [^.]+\. [a-z_]+(?:, [a-z_]+)*: ")
#: a fragment without its subject, such as "Of its engine; None if unknown"
BARE = re.compile(r"(As|Of)\b")
#: unidiomatic phrases in docstrings, comments and messages
PHRASES = {
    "held against": re.compile(r"\bheld against\b"),
    "by turns": re.compile(r"\b(?:by|in) turns\b"),
    "anew": re.compile(r"\banew\b"),
    "is no": re.compile(r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b)"),
    "beside": re.compile(r"\bbeside\b"),
}
#: maximum number of findings of each kind in src; a limit is never raised
LIMITS = {
    "a docstring that begins with a bare preposition": 0,
    'the phrase "held against"': 0,
    'the phrase "by turns"': 0,
    'the phrase "anew"': 0,
    'the phrase "is no"': 1,
    'the phrase "beside"': 17,
    "a variable with a vague name": 0,
    "a function named by a participle or a preposition": 3,
    "a docstring that begins with a question word": 0,
    "fields explained in a run of prose": 0,
    "a module whose name is no noun": 0,
}


class Finding(NamedTuple):
    """An unidiomatic phrase or a vague name in a file."""

    kind: str
    path: Path
    line: int
    text: str


def bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a loop, an assignment or a parameter binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.For | ast.NamedExpr | ast.comprehension):
            targets = [node.target]
        for target in targets:
            yield from ((leaf.id, leaf.lineno) for leaf in ast.walk(target) if isinstance(leaf, ast.Name))


def docstrings(tree: ast.AST) -> Iterator[tuple[ast.AST, int, str]]:
    """Yield each documented module, class and function with its line and its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node, getattr(node, "lineno", 1), text


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments, docstrings and other strings of a file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in PROSE:
            yield token.start[0], token.string


def vague_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield each function, apart from properties, whose name is a bare participle or preposition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and VAGUE_FUNCTION.fullmatch(node.name):
            decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
            if not decorators & PROPERTIES:
                yield node


def findings(path: Path) -> Iterator[Finding]:
    """Yield the findings in a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for line, text in prose(source):
        for phrase, pattern in PHRASES.items():
            for match in pattern.finditer(text):
                at = line + text.count("\n", 0, match.start())
                yield Finding(f'the phrase "{phrase}"', path, at, source.splitlines()[at - 1].strip())
    if not path.stem.startswith("__") and PARTICIPLE.search(path.stem.split("_")[-1]):
        yield Finding("a module whose name is no noun", path, 1, path.stem)
    for name, line in bound(tree):
        if name in VAGUE:
            yield Finding("a variable with a vague name", path, line, name)
    for function in vague_functions(tree):
        yield Finding("a function named by a participle or a preposition", path, function.lineno, function.name)
    for node, line, text in docstrings(tree):
        first = text.splitlines()[0]
        if BARE.match(text):
            yield Finding("a docstring that begins with a bare preposition", path, line, first)
        elif QUESTION.match(text):
            yield Finding("a docstring that begins with a question word", path, line, first)
        if isinstance(node, ast.ClassDef) and FIELDS_IN_PROSE.search(text.replace("\n", " ")):
            yield Finding("fields explained in a run of prose", path, line, node.name)


def main(top: Path = TOP, *, everything: bool = False) -> int:
    """Print what exceeds its limit; return 1 if anything does."""
    found = [finding for path in sorted((top / FOLDER).rglob("*.py")) for finding in findings(path)]
    failed = 0
    for kind, limit in LIMITS.items():
        hits = [finding for finding in found if finding.kind == kind]
        if everything or len(hits) > limit:
            for hit in hits:
                print(f"{hit.path.relative_to(top)}:{hit.line}: {kind}: {hit.text}")
        if len(hits) > limit:
            print(f"{len(hits)} times {kind}, at most {limit} (tools/voice.py)")
            failed = 1
        elif len(hits) < limit:
            print(f"{len(hits)} times {kind}: lower its limit of {limit} in tools/voice.py")
    return failed


if __name__ == "__main__":
    sys.exit(main(everything="--all" in sys.argv))

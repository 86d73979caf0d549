"""Finds every regular expression in the source tree, and builds texts that reveal a quadratic or worse search."""

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import sparkwright
from sparkwright.engines.log.text import LinePattern

#: in ascending order: on the largest a quadratic search takes a minute, and a cubic one does not end
SIZES = (1 << 12, 1 << 14, 1 << 16)
#: one character of each class that patterns distinguish
LETTERS = "a1 .,:/-_'\"[](){}=`|A\t\\"
#: character classes, each with a member and its spelling
CATEGORIES: dict[Any, tuple[str, str]] = {
    sre.CATEGORY_DIGIT: ("1", r"\d"),
    sre.CATEGORY_SPACE: (" ", r"\s"),
    sre.CATEGORY_WORD: ("a", r"\w"),
    sre.CATEGORY_NOT_SPACE: ("a", r"\S"),
    sre.CATEGORY_NOT_DIGIT: ("a", r"\D"),
    sre.CATEGORY_NOT_WORD: (" ", r"\W"),
}
READERS = ("compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "split")


def list_modules() -> dict[str, list[str]]:
    """Return the importable modules of the tree by package, without importing them."""
    top = Path(sparkwright.__file__).parent
    by_package: dict[str, list[str]] = {}
    for path in sorted(top.rglob("*.py")):
        if path.stem not in ("__main__", "boot"):
            package = ".".join(path.parent.relative_to(top.parent).parts)
            by_package.setdefault(package, []).append(f"{package}.{path.stem}".removesuffix(".__init__"))
    return by_package


def find_patterns(module: str) -> dict[tuple[str, str], str]:
    """Return the patterns of a module, each with the `re` function that uses it, and its line or name.

    These are the patterns in module-level values, nested ones too, and literals in calls of `re`.
    """
    functions: dict[tuple[str, str], str] = {}
    loaded = importlib.import_module(module)
    for name, value in vars(loaded).items():
        for item in _nested_patterns(value):
            functions.setdefault((item.pattern, "search"), name)
    for line, text, method in _literal_patterns(Path(str(loaded.__file__))):
        functions.setdefault((text, method), f"line {line}")
    return functions


def apply_pattern(pattern: str, method: str, text: str) -> None:
    """Apply a pattern to a text as the code does: match, fullmatch or search."""
    compiled = re.compile(pattern)
    if method == "fullmatch":
        compiled.fullmatch(text)
    elif method == "match":
        compiled.match(text)
    else:
        for _ in compiled.finditer(text):
            pass


@dataclass(frozen=True, slots=True)
class Shape:
    """A text of any size: a repeated part between a beginning and an end."""

    begin: str
    repeated: str
    end: str

    def text(self, size: int) -> str:
        return self.begin + (self.repeated * (size // len(self.repeated) + 1))[:size] + self.end


def find_slow_shapes(pattern: str) -> Iterator[Shape]:
    """Yield shapes on which a search for the pattern fails late and from many positions."""
    starts = {""}
    before = ""
    for node in _parser.parse(pattern):
        starts |= set() if node[0] is sre.LITERAL else {before, before + _sample_text(node)}
        before += _sample_text(node)
    starts.add(before)
    letters = _distinct_letters(pattern)
    for start in sorted(starts):
        if start:
            yield Shape("", start, "")
        for letter in letters:
            yield Shape(start, letter, "\x01")
            yield Shape("", start + letter * 5, "\x01")


def _distinct_letters(pattern: str) -> list[str]:
    """Return one letter per group of letters that no part of the pattern distinguishes."""
    atoms = [re.compile(atom) for atom in sorted(set(_atoms(_parser.parse(pattern))))]
    kinds = {tuple(bool(atom.fullmatch(letter)) for atom in atoms): letter for letter in LETTERS}
    return sorted(kinds.values())


def _atoms(nodes: Any) -> Iterator[str]:
    """Yield every single character or class in a pattern, as its own pattern."""
    for kind, content in nodes:
        if kind is sre.LITERAL:
            yield re.escape(chr(content))
        elif kind is sre.NOT_LITERAL:
            yield f"[^{re.escape(chr(content))}]"
        elif kind is sre.IN:
            negated = content[0][0] is sre.NEGATE
            yield f"[{'^' if negated else ''}{''.join(_spell_item(item) for item in content[negated:])}]"
        elif kind is sre.BRANCH:
            for branch in content[1]:
                yield from _atoms(branch)
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT, sre.SUBPATTERN):
            yield from _atoms(content[-1])
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _atoms(content[1])
        elif kind is sre.ATOMIC_GROUP:
            yield from _atoms(content)


def _nested_patterns(value: Any, depth: int = 4) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif isinstance(value, LinePattern):
        yield re.compile(value.pattern)
    elif isinstance(value, dict) and depth:
        yield from _nested_patterns(tuple(value.values()), depth - 1)
    elif isinstance(value, tuple | list | frozenset) and depth:
        for item in value:
            yield from _nested_patterns(item, depth - 1)
    elif hasattr(value, "line") and isinstance(value.line, LinePattern):
        yield from _nested_patterns(value.line)


def _literal_patterns(path: Path) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(ast.Attribute(ast.Name("re"), attr), [ast.Constant(str() as text), *_]) if attr in READERS:
                if attr != "compile":  # found by _nested_patterns
                    yield node.lineno, text, attr


def _sample_text(node: tuple[Any, Any]) -> str:
    """Return a text that a node of a pattern matches; empty for a lookaround."""
    kind, content = node
    match kind:
        case sre.LITERAL:
            return chr(content)
        case sre.NOT_LITERAL | sre.ANY:
            return "a"
        case sre.IN:
            return _class_member(content)
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            low, _, inner = content
            repetitions: int = max(low, 1)
            return _sample_texts(inner) * repetitions
        case sre.SUBPATTERN:
            return _sample_texts(content[-1])
        case sre.ATOMIC_GROUP:
            return _sample_texts(content)
        case sre.BRANCH:
            return _sample_texts(content[1][0])
    return ""


def _sample_texts(nodes: Any) -> str:
    return "".join(_sample_text(node) for node in nodes)


def _class_member(items: Any) -> str:
    negated = bool(items) and items[0][0] is sre.NEGATE
    if negated:
        excluded = re.compile("".join(_spell_item(item) for item in items[1:]).join(("[^", "]")))
        return next((letter for letter in LETTERS if excluded.match(letter)), "z")
    kind, content = items[0]
    if kind is sre.LITERAL:
        return chr(content)
    return chr(content[0]) if kind is sre.RANGE else CATEGORIES[content][0]


def _spell_item(item: tuple[Any, Any]) -> str:
    kind, content = item
    if kind is sre.LITERAL:
        return re.escape(chr(content))
    if kind is sre.RANGE:
        return f"{re.escape(chr(content[0]))}-{re.escape(chr(content[1]))}"
    return CATEGORIES[content][1]

"""Expressions of names, constants, `and`, `or`, `not`, `==` and `!=`: most of a playbook's, understood without Jinja2.

Its import takes a host longer than all that it does for a plan that finds nothing to do. What is not as plain as that, or asks
for a name that is not there, is left to Jinja2 and its sentences.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from typing import Any

#: Jinja2's spellings, beside Python's own
WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
#: characters; a longer one may be nested too deeply for the functions below
LONGEST = 500


#: a longer one is not plain; the recursion here is no deeper than this allows
MOST_CHARS = 500


class NotPlain(Exception):
    """Only Jinja2 can tell."""


def names(expression: str) -> frozenset[str]:
    """The names it asks for. Raises NotPlain."""
    return _read(expression)[1]


def value(expression: str, known: Mapping[str, Any]) -> Any:
    """What Jinja2 would find. Raises NotPlain."""
    return _value(_read(expression)[0], known)


@functools.lru_cache(maxsize=1024)
def _read(expression: str) -> tuple[ast.expr, frozenset[str]]:
    if (
        len(expression) > MOST_CHARS or not expression.isascii() or "\\" in expression or "#" in expression
    ):  # they mean something else in Python
        raise NotPlain
    if len(expression) > LONGEST:
        raise NotPlain
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotPlain from None
    return tree, frozenset(_names(tree))


def _names(node: ast.expr) -> set[str]:
    match node:
        case ast.BoolOp(_, parts):
            return set[str]().union(*map(_names, parts))
        case ast.UnaryOp(ast.Not(), part):
            return _names(part)
        case ast.Compare(left, [ast.Eq() | ast.NotEq()], [right]):
            return _names(left) | _names(right)
        case ast.Attribute(of):
            return _names(of)
        case ast.Name(name):
            return set() if name in WORDS else {name}
        case ast.Constant(bool() | int() | str() | None):
            return set()
    raise NotPlain


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(ast.And(), [first, *rest]):
            return functools.reduce(lambda found, part: found and _value(part, known), rest, _value(first, known))
        case ast.BoolOp(ast.Or(), [first, *rest]):
            return functools.reduce(lambda found, part: found or _value(part, known), rest, _value(first, known))
        case ast.UnaryOp(_, part):
            return not _value(part, known)
        case ast.Compare(left, [ast.Eq()], [right]):
            return _value(left, known) == _value(right, known)
        case ast.Compare(left, _, [right]):
            return _value(left, known) != _value(right, known)
        case ast.Attribute(of, name):
            return _item(_value(of, known), name)
        case ast.Name(name):
            return WORDS[name] if name in WORDS else _item(known, name)
        case ast.Constant(constant):
            return constant
    raise NotPlain


def _item(of: Any, name: str) -> Any:
    """A mapping's own key. An attribute that mappings have (`items`) would come first."""
    if not isinstance(of, Mapping) or name not in of or hasattr(of, name):
        raise NotPlain
    return of[name]

"""Jinja2 as a playbook uses it: sandboxed, undefined names are errors, a lone "{{ x }}" keeps its type.

Both sides use it: the laptop for what depends on files alone, the host for facts and registered results.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkwright.protocol import expression_cost, jinja
from sparkwright.protocol.jinja import truth

#: of a text, in a sentence about it
SHOWN_CHARS = 300
#: characters of an expression that a sentence about it repeats
SHOWN = 200


class ExpressionError(Exception):
    """An expression that can't be parsed or evaluated; the message is a sentence. line: of the text, from 1; 0 when not known."""

    line: int = 0


class UnknownName(ExpressionError):
    """A name that nothing defines (yet)."""


def is_open(value: Any) -> bool:
    """Whether any string in this value (deep) holds an expression."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or "{#" in value
    if isinstance(value, Mapping):
        return any(is_open(v) for v in value.values())
    return isinstance(value, list | tuple) and any(is_open(v) for v in value)


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """The names a template string asks for. Raises ExpressionError on bad syntax."""
    try:
        return jinja.names_in(text)
    except Exception as error:  # its parser and Python's have their own for what is nested too deeply
        line = jinja.line_of(error)
        refused = ExpressionError(f"bad expression in {_shown(text, line)}: {_reason(error)}")
        refused.line = line
        raise refused from None


def line_of_name(text: str, name: str) -> int:
    """The line, from 1, of a text in which a name is first used; 0 if it cannot be determined."""
    return jinja.line_of_name(text, name)


def names_in_condition(expression: str) -> frozenset[str]:
    """The names a bare expression (`when`, `until`) asks for."""
    return names_in("{{ " + expression + " }}")


def names_in_value(value: Any) -> frozenset[str]:
    """The names asked for by all strings of a value, deep."""
    if isinstance(value, str):
        return names_in(value) if is_open(value) else frozenset()
    children: Iterable[Any] = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    return frozenset().union(*(names_in_value(child) for child in children))


def render(value: Any, names: Mapping[str, Any]) -> Any:
    """The value with every expression replaced. A string that is one lone expression keeps the expression's type.

    Raises UnknownName for an undefined name, ExpressionError for anything else.
    """
    if isinstance(value, str):
        return _render_text(value, names) if is_open(value) else value
    if isinstance(value, Mapping):
        return {key: render(child, names) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [render(child, names) for child in value]
    return value


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of a bare expression, as in `when: image.changed`. Raises as `render` does."""
    with _sentences(expression):
        return jinja.evaluated(expression, names)


def holds(conditions: Iterable[str], names: Mapping[str, Any]) -> bool:
    """Whether all of these conditions are true, as Ansible's `when` list."""
    return all(truth(evaluate(condition, names)) for condition in conditions)


def _render_text(text: str, names: Mapping[str, Any]) -> Any:
    with _sentences(text):
        expression = jinja.lone_expression(text)
        return jinja.rendered(text, names) if expression is None else jinja.evaluated(expression, names)


@contextmanager
def _sentences(text: str) -> Iterator[None]:
    """Whatever goes wrong within the block is an ExpressionError that names the expression."""
    try:
        yield
    except Exception as error:
        kind = UnknownName if isinstance(error, jinja.UndefinedError) else ExpressionError
        line = jinja.line_of(error)
        refused = kind(f"{_reason(error)} in {_shown(text, line)}")
        refused.line = line
        raise refused from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return f"needs more than {expression_cost.GROWTH_BYTES // 2**20} MiB of memory"
    return str(error).rstrip(".") or type(error).__name__


def _shown(text: str, line: int) -> str:
    """A text as a sentence repeats it: of several lines the one where it went wrong."""
    lines = text.split("\n")
    if len(lines) > 1 and 0 < line <= len(lines):
        text = lines[line - 1].strip()
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")

"""The part of `expressions` that is Jinja2: one environment, and templates compiled once."""

from __future__ import annotations

import contextlib
import functools
import posixpath
import traceback
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import StrictUndefined, meta, nodes
from jinja2.exceptions import TemplateSyntaxError, UndefinedError

from sparkwright import shell
from sparkwright.protocol import expression_cost, jinja_folding
from sparkwright.protocol.jinja_limits import Limited, begin
from sparkwright.units import gib
from sparkwright.visible import one_line

__all__ = ["UndefinedError", "evaluated", "line_of", "line_of_name", "lone_expression", "names_in", "rendered", "truth"]

#: in the frames that Jinja2 lays into a traceback, whose lines are those of the text
RAISED = "__jinja_exception__"


def truth(value: Any) -> bool:
    """What a value means as a condition: the words that YAML and Ansible take for true are true, other texts are not."""
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def _environment() -> Limited:
    env = Limited(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    env.filters.update(
        quote=shell.quote,
        one_line=one_line,  # for a comment: what a recipe says must not end it
        bool=truth,
        basename=posixpath.basename,
        dirname=posixpath.dirname,
        GiB=lambda size_bytes: f"{gib(size_bytes)} GiB",
    )
    env.tests.update(
        changed=lambda result: bool(result["changed"]),
        failed=lambda result: bool(result["failed"]),
        succeeded=lambda result: not result["failed"],
        skipped=lambda result: bool(result["skipped"]),
    )
    return env


_ENV = _environment()


def names_in(text: str) -> frozenset[str]:
    """The names a template string asks for. Raises TemplateError on bad syntax."""
    parsed = _parsed(text)
    if all(isinstance(node, nodes.Output) for node in parsed.body):  # nothing in it can give a name a value of its own
        return frozenset(name.name for name in parsed.find_all(nodes.Name))
    return frozenset(meta.find_undeclared_variables(parsed))


def line_of_name(text: str, name: str) -> int:
    """See `expressions.line_of_name`."""
    return min((one.lineno for one in _ENV.parse(text).find_all(nodes.Name) if one.name == name), default=0)


def line_of(error: BaseException) -> int:
    """The line of a template on which an error was met; 0 when that is not known."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if RAISED in frame.f_globals]
    return lines[-1] if lines else 0


@functools.lru_cache(maxsize=1024)
def lone_expression(text: str) -> str | None:
    """The expression of a text that is nothing but one; else None."""
    body = text.strip()
    if not (body.startswith("{{") and body.endswith("}}")):
        return None
    parsed = _parsed(body).body
    one_output = len(parsed) == 1 and isinstance(parsed[0], nodes.Output) and len(parsed[0].nodes) == 1
    return body[2:-2].strip() if one_output else None


def evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of a bare expression, plain all through. Raises what Jinja2 raises, and OutOfBounds."""
    begin()
    with expression_cost.memory():
        with contextlib.suppress(Exception):  # whatever is wrong with it, the compiled one says
            tree = _parsed("{{ " + expression + " }}")
            return expression_cost.timed(lambda: _settled(jinja_folding.value(tree, names)))
        call = _compiled(expression)
        return expression_cost.timed(lambda: _settled(call(**names)))


def rendered(text: str, names: Mapping[str, Any]) -> Any:
    """A text with every expression in it replaced. Raises as `evaluated` does."""
    begin()
    with expression_cost.memory():
        template = _template(text)
        return expression_cost.timed(lambda: _settled(template.render(**names)))


def _settled(value: Any) -> Any:
    """A value that no longer depends on names: what is lazy is a list, what is undefined raises UndefinedError."""
    if isinstance(value, StrictUndefined):
        value._fail_with_undefined_error()
    if isinstance(value, Mapping):
        return {key: _settled(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set | Iterator | KeysView | ValuesView | ItemsView):
        return [_settled(child) for child in value]
    return value


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> nodes.Template:
    """The tree of a text, which nobody changes."""
    return _ENV.parse(text)


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> Any:
    return _ENV.from_string(text)


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> Any:
    _parsed("{{ " + expression + " }}")  # `compile_expression` has a parser of its own, which does not count
    return _ENV.compile_expression(expression, undefined_to_none=False)

"""Jinja2 as a playbook uses it: sandboxed, undefined names are errors, a lone "{{ x }}" keeps its type.

Both sides use it: the laptop for what depends on files alone, the host for facts and registered results.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta, nodes
from jinja2.exceptions import UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sparkwright import shell


class ExpressionError(Exception):
    """An expression that can't be parsed or evaluated; the message is a sentence."""


class UnknownName(ExpressionError):
    """A name that nothing defines (yet)."""


def _environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    env.filters.update(
        quote=shell.quote,
        bool=_truth,
        basename=posixpath.basename,
        dirname=posixpath.dirname,
        GiB=lambda size_bytes: f"{size_bytes / 2**30:.1f} GiB",
    )
    env.tests.update(
        changed=lambda result: bool(result["changed"]),
        failed=lambda result: bool(result["failed"]),
        succeeded=lambda result: not result["failed"],
        skipped=lambda result: bool(result["skipped"]),
    )
    return env


def _truth(value: Any) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


_ENV = _environment()


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
        return frozenset(meta.find_undeclared_variables(_ENV.parse(text)))
    except TemplateError as error:
        raise ExpressionError(f"bad expression in {text!r}: {error}") from None


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
    """The value of a bare expression, as in `when: image.changed`."""
    return _guard(expression, lambda: _compiled(expression)(**names))


def holds(conditions: Iterable[str], names: Mapping[str, Any]) -> bool:
    """Whether all of these conditions are true, as Ansible's `when` list."""
    return all(_truth(evaluate(condition, names)) for condition in conditions)


def _render_text(text: str, names: Mapping[str, Any]) -> Any:
    lone = _lone_expression(text)
    if lone is not None:
        return evaluate(lone, names)
    return _guard(text, lambda: _template(text).render(**names))


@functools.lru_cache(maxsize=1024)
def _lone_expression(text: str) -> str | None:
    body = text.strip()
    if not (body.startswith("{{") and body.endswith("}}")):
        return None
    parsed = _ENV.parse(body).body
    one_output = len(parsed) == 1 and isinstance(parsed[0], nodes.Output) and len(parsed[0].nodes) == 1
    return body[2:-2].strip() if one_output else None


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> Any:
    return _ENV.from_string(text)


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> Any:
    return _ENV.compile_expression(expression, undefined_to_none=False)


def _guard(text: str, call: Any) -> Any:
    try:
        value = call()
        if isinstance(value, StrictUndefined):
            value._fail_with_undefined_error()
        return value
    except UndefinedError as error:
        raise UnknownName(f"{error.message} in {text!r}") from None
    except TemplateError as error:
        raise ExpressionError(f"{error.message or error} in {text!r}") from None
    except Exception as error:
        raise ExpressionError(f"{error} in {text!r}") from error

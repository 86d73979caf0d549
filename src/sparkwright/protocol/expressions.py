"""Jinja2 as a playbook uses it: sandboxed, undefined names are errors, a lone "{{ x }}" keeps its type.

Both sides use it: the laptop for values that depend on files alone, the host for facts and registered results.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jinja2 import StrictUndefined, meta, nodes
from jinja2.exceptions import TemplateSyntaxError, UndefinedError

from sparkwright.protocol import jinja
from sparkwright.protocol.jinja import create_environment, reset_steps, to_bool

#: characters of an expression that a message quotes
MAX_QUOTED_CHARACTERS = 200
#: in the frames that Jinja2 inserts into a traceback, whose lines are those of the text
TEMPLATE_FRAME_MARKER = "__jinja_exception__"

#: the types of nearly all values
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})

_ENV = create_environment()


class ExpressionError(Exception):
    """An expression that can't be parsed or evaluated; the message is a sentence. line: of the text, from 1; 0 if unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class UnknownName(ExpressionError):
    """A name that is not defined (yet)."""


def _strings_with_expressions(value: Any) -> Iterator[str]:
    """Yield every string of a value (deep) that holds an expression."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value or "{#" in value:
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _strings_with_expressions(child)


def has_expression(value: Any) -> bool:
    """Return True if any string in this value (deep) holds an expression."""
    return any(True for _ in _strings_with_expressions(value))


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """Return the names that a template string uses. Raises ExpressionError on bad syntax."""
    try:
        template = _parse(text)
        if all(isinstance(node, nodes.Output) for node in template.body):  # nothing in it assigns a name
            return frozenset(name.name for name in template.find_all(nodes.Name))
        return frozenset(meta.find_undeclared_variables(template))
    except Exception as error:  # both parsers raise their own errors for deep nesting
        line = _line_of(error)
        raise ExpressionError(f"bad expression in {_quote_text(text, line)}: {_describe_error(error)}", line) from None


def line_of_name(text: str, name: str) -> int:
    """Return the line, from 1, of a text in which a name is first used; 0 if it cannot be determined."""
    return min((item.lineno for item in _ENV.parse(text).find_all(nodes.Name) if item.name == name), default=0)


def names_in_condition(expression: str) -> frozenset[str]:
    """Return the names that a bare expression (`when`, `until`) uses."""
    return names_in("{{ " + expression + " }}")


def names_in_value(value: Any) -> frozenset[str]:
    """Return the names that all strings of a value use, deep."""
    return frozenset().union(*map(names_in, _strings_with_expressions(value)))


def render(value: Any, names: Mapping[str, Any]) -> Any:
    """Return the value with every expression replaced. A string that is one lone expression keeps the expression's type.

    Raises UnknownName for an undefined name, ExpressionError for anything else.
    """
    if isinstance(value, str):
        return _render_text(value, names) if has_expression(value) else value
    if isinstance(value, Mapping):
        return {key: render(child, names) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [render(child, names) for child in value]
    return value


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of a bare expression, as in `when: image.changed`. Raises as `render` does."""
    with _expression_errors(expression):
        return _compute_value(_compile_expression, expression, names)


def all_true(conditions: Iterable[str], names: Mapping[str, Any]) -> bool:
    """Return True if all of these conditions are true, as in Ansible's `when` list."""
    return all(to_bool(evaluate(condition, names)) for condition in conditions)


def _render_text(text: str, names: Mapping[str, Any]) -> Any:
    with _expression_errors(text):
        expression = _find_lone_expression(text)
        return (
            _compute_value(_compile_template, text, names)
            if expression is None
            else _compute_value(_compile_expression, expression, names)
        )


@functools.lru_cache(maxsize=1024)
def _find_lone_expression(text: str) -> str | None:
    """Return the expression of a text that consists of exactly one; else None."""
    body = text.strip()
    if not (body.startswith("{{") and body.endswith("}}")):
        return None
    children = _parse(body).body
    one_output = len(children) == 1 and isinstance(children[0], nodes.Output) and len(children[0].nodes) == 1
    return body[2:-2].strip() if one_output else None


def _compute_value(compile_text: Callable[[str], Callable[..., Any]], text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of a text, as plain data all through. Raises what Jinja2 raises, and LimitExceeded."""
    reset_steps()
    with limit_memory():
        if compile_text is _compile_expression:
            with contextlib.suppress(Exception):  # the compiled one reports the error
                return _to_plain_data(jinja.fold_expression(_parse("{{ " + text + " }}"), names))
        call = compile_text(text)
        return limit_cpu_time(lambda: _to_plain_data(call(**names)))


def _to_plain_data(value: Any) -> Any:
    """Return a value that no longer depends on names: lazy values become lists, undefined ones raise UndefinedError."""
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, StrictUndefined):
        value._fail_with_undefined_error()
    if isinstance(value, Mapping):
        return {key: _to_plain_data(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set | Iterator | KeysView | ValuesView | ItemsView):
        return [_to_plain_data(child) for child in value]
    return value


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> nodes.Template:
    """Return the syntax tree of a text, which is cached and must not be changed."""
    return _ENV.parse(text)


@functools.lru_cache(maxsize=1024)
def _compile_template(text: str) -> Callable[..., Any]:
    return _ENV.from_string(text).render


@functools.lru_cache(maxsize=1024)
def _compile_expression(expression: str) -> Callable[..., Any]:
    _parse("{{ " + expression + " }}")  # `compile_expression` has a parser of its own, which does not count
    return _ENV.compile_expression(expression, undefined_to_none=False)


@contextlib.contextmanager
def _expression_errors(text: str) -> Iterator[None]:
    """Turn any error within the block into an ExpressionError that names the expression."""
    try:
        yield
    except Exception as error:
        kind = UnknownName if isinstance(error, UndefinedError) else ExpressionError
        line = _line_of(error)
        raise kind(f"{_describe_error(error)} in {_quote_text(text, line)}", line) from None


def _line_of(error: BaseException) -> int:
    """Return the line of a template on which an error occurred; 0 if unknown."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if TEMPLATE_FRAME_MARKER in frame.f_globals]
    return lines[-1] if lines else 0


def _describe_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return f"needs more than {MAX_GROWTH_BYTES // 2**20} MiB of memory"
    return str(error).rstrip(".") or type(error).__name__


def _quote_text(text: str, line: int) -> str:
    """Return a text as a sentence quotes it: of several lines the one with the error."""
    lines = text.split("\n")
    if len(lines) > 1 and 0 < line <= len(lines):
        text = lines[line - 1].strip()
    return repr(text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}...")


# Limits on the cost of one expression for the process that evaluates it: CPU time and memory.
#
# jinja.py counts what the template itself asks for, and refuses it before it is made.
#
# An expression reads facts and results, which a host, a log or a model filled. Whatever goes wrong, it is a failed task of a
# run that continues to its rescue, never the end of the process.

#: processor seconds; a normal template of some hundred lines takes milliseconds
MAX_CPU_S = 1.0
#: growth of the process meanwhile
MAX_GROWTH_BYTES = 256 * 2**20


class LimitExceeded(Exception):
    """An expression that exceeds a limit; the message is a sentence."""


@contextmanager
def limit_memory() -> Iterator[None]:
    """Limit the growth of the process to MAX_GROWTH_BYTES within the block: beyond it a MemoryError is raised.

    Only on a host, where the expression runs alone: the limit is the process's, and other threads must not run into it.
    """
    current_bytes = _address_space() if threading.active_count() == 1 else 0
    if not current_bytes:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = current_bytes + MAX_GROWTH_BYTES
    if soft == resource.RLIM_INFINITY or soft > limit_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def limit_cpu_time(call: Callable[[], Any]) -> Any:
    """Return the result of CALL. Raises LimitExceeded from within it if it takes more than MAX_CPU_S of CPU time.

    It is traced line by line, in its own thread: a signal would only reach the main one.
    """
    previous_trace, deadline_s = sys.gettrace(), time.thread_time() + MAX_CPU_S

    def watch(frame: FrameType, what: str, value: Any) -> Any:
        if time.thread_time() > deadline_s:
            raise LimitExceeded(f"takes more than {MAX_CPU_S:g} s")
        return watch

    sys.settrace(watch)
    try:
        return call()
    finally:
        sys.settrace(previous_trace)


def _address_space() -> int:
    """Return the bytes of this process's address space; 0 if the system does not report it (macOS)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()

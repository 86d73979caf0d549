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
from sparkwright.protocol.jinja import begin, environment, truth

#: characters of an expression that a message quotes
SHOWN = 200
#: in the frames that Jinja2 lays into a traceback, whose lines are those of the text
RAISED = "__jinja_exception__"

#: the types of nearly all values
_SETTLED = frozenset({str, int, float, bool, type(None)})

_ENV = environment()


class ExpressionError(Exception):
    """An expression that can't be parsed or evaluated; the message is a sentence. line: of the text, from 1; 0 if unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class UnknownName(ExpressionError):
    """A name that is not defined (yet)."""


def _open(value: Any) -> Iterator[str]:
    """Yield every string of a value (deep) that holds an expression."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value or "{#" in value:
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _open(child)


def is_open(value: Any) -> bool:
    """Return True if any string in this value (deep) holds an expression."""
    return any(True for _ in _open(value))


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """Return the names that a template string uses. Raises ExpressionError on bad syntax."""
    try:
        parsed = _parsed(text)
        if all(isinstance(node, nodes.Output) for node in parsed.body):  # nothing in it assigns a name
            return frozenset(name.name for name in parsed.find_all(nodes.Name))
        return frozenset(meta.find_undeclared_variables(parsed))
    except Exception as error:  # both parsers raise their own errors for deep nesting
        line = _line_of(error)
        raise ExpressionError(f"bad expression in {_shown(text, line)}: {_reason(error)}", line) from None


def line_of_name(text: str, name: str) -> int:
    """Return the line, from 1, of a text in which a name is first used; 0 if it cannot be determined."""
    return min((item.lineno for item in _ENV.parse(text).find_all(nodes.Name) if item.name == name), default=0)


def names_in_condition(expression: str) -> frozenset[str]:
    """Return the names that a bare expression (`when`, `until`) uses."""
    return names_in("{{ " + expression + " }}")


def names_in_value(value: Any) -> frozenset[str]:
    """Return the names that all strings of a value use, deep."""
    return frozenset().union(*map(names_in, _open(value)))


def render(value: Any, names: Mapping[str, Any]) -> Any:
    """Return the value with every expression replaced. A string that is one lone expression keeps the expression's type.

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
    """Return the value of a bare expression, as in `when: image.changed`. Raises as `render` does."""
    with _sentences(expression):
        return _value(_compiled, expression, names)


def holds(conditions: Iterable[str], names: Mapping[str, Any]) -> bool:
    """Return True if all of these conditions are true, as in Ansible's `when` list."""
    return all(truth(evaluate(condition, names)) for condition in conditions)


def _render_text(text: str, names: Mapping[str, Any]) -> Any:
    with _sentences(text):
        expression = _lone_expression(text)
        return _value(_template, text, names) if expression is None else _value(_compiled, expression, names)


@functools.lru_cache(maxsize=1024)
def _lone_expression(text: str) -> str | None:
    """Return the expression of a text that consists of exactly one; else None."""
    body = text.strip()
    if not (body.startswith("{{") and body.endswith("}}")):
        return None
    parsed = _parsed(body).body
    one_output = len(parsed) == 1 and isinstance(parsed[0], nodes.Output) and len(parsed[0].nodes) == 1
    return body[2:-2].strip() if one_output else None


def _value(compiled: Callable[[str], Callable[..., Any]], text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of a text, as plain data all through. Raises what Jinja2 raises, and OutOfBounds."""
    begin()
    with memory():
        if compiled is _compiled:
            with contextlib.suppress(Exception):  # the compiled one reports the error
                return _settled(jinja.value(_parsed("{{ " + text + " }}"), names))
        call = compiled(text)
        return timed(lambda: _settled(call(**names)))


def _settled(value: Any) -> Any:
    """Return a value that no longer depends on names: lazy values become lists, undefined ones raise UndefinedError."""
    if type(value) in _SETTLED:
        return value
    if isinstance(value, StrictUndefined):
        value._fail_with_undefined_error()
    if isinstance(value, Mapping):
        return {key: _settled(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set | Iterator | KeysView | ValuesView | ItemsView):
        return [_settled(child) for child in value]
    return value


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> nodes.Template:
    """Return the syntax tree of a text, which is cached and must not be changed."""
    return _ENV.parse(text)


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> Callable[..., Any]:
    return _ENV.from_string(text).render


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> Callable[..., Any]:
    _parsed("{{ " + expression + " }}")  # `compile_expression` has a parser of its own, which does not count
    return _ENV.compile_expression(expression, undefined_to_none=False)


@contextlib.contextmanager
def _sentences(text: str) -> Iterator[None]:
    """Turn any error within the block into an ExpressionError that names the expression."""
    try:
        yield
    except Exception as error:
        kind = UnknownName if isinstance(error, UndefinedError) else ExpressionError
        line = _line_of(error)
        raise kind(f"{_reason(error)} in {_shown(text, line)}", line) from None


def _line_of(error: BaseException) -> int:
    """Return the line of a template on which an error occurred; 0 if unknown."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if RAISED in frame.f_globals]
    return lines[-1] if lines else 0


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return f"needs more than {GROWTH_BYTES // 2**20} MiB of memory"
    return str(error).rstrip(".") or type(error).__name__


def _shown(text: str, line: int) -> str:
    """Return a text as a sentence quotes it: of several lines the one with the error."""
    lines = text.split("\n")
    if len(lines) > 1 and 0 < line <= len(lines):
        text = lines[line - 1].strip()
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


# Limits on the cost of one expression for the process that evaluates it: CPU time and memory.
#
# jinja.py counts what the template itself asks for, and refuses it before it is made.
#
# An expression reads facts and results, which a host, a log or a model filled. Whatever goes wrong, it is a failed task of a
# run that continues to its rescue, never the end of the process.

#: processor seconds; a normal template of some hundred lines takes milliseconds
TIME_S = 1.0
#: growth of the process meanwhile
GROWTH_BYTES = 256 * 2**20


class OutOfBounds(Exception):
    """An expression that exceeds a limit; the message is a sentence."""


@contextmanager
def memory() -> Iterator[None]:
    """Limit the growth of the process to GROWTH_BYTES within the block: beyond it a MemoryError is raised.

    Only on a host, where the expression runs alone: the limit is the process's, and other threads must not run into it.
    """
    now = _address_space() if threading.active_count() == 1 else 0
    if not now:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = now + GROWTH_BYTES
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def timed(call: Callable[[], Any]) -> Any:
    """Return the result of CALL. Raises OutOfBounds from within it if it takes more than TIME_S of CPU time.

    It is traced line by line, in its own thread: a signal would only reach the main one.
    """
    before, ends_s = sys.gettrace(), time.thread_time() + TIME_S

    def watch(frame: FrameType, what: str, value: Any) -> Any:
        if time.thread_time() > ends_s:
            raise OutOfBounds(f"takes more than {TIME_S:g} s")
        return watch

    sys.settrace(watch)
    try:
        return call()
    finally:
        sys.settrace(before)


def _address_space() -> int:
    """Return the bytes of this process's address space; 0 if the system does not report it (macOS)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()

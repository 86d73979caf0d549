"""Evaluate a playbook's Jinja2 expressions in a sandbox.

Undefined names are errors, and a string that is only "{{ x }}" keeps x's type. The laptop renders expressions that depend only on
files; the host renders those with facts and registered results. Results may come from a log or a model, so an error in an
expression only fails its task, and the play's rescue runs.
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

#: limit on the CPU time of an expression; a template of a few hundred lines takes milliseconds
MAX_CPU_S = 1.0
#: limit on the growth of the process while it evaluates an expression
MAX_GROWTH_BYTES = 256 * 2**20
#: limit on the characters of an expression in a message
MAX_QUOTED_CHARACTERS = 200
#: global variable in the traceback frames of Jinja2 whose line numbers are those of the template
TEMPLATE_FRAME_MARKER = "__jinja_exception__"

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})

_ENV = create_environment()
#: names that Jinja2 defines itself, such as `range`
GLOBAL_NAMES = frozenset(_ENV.globals)


class ExpressionError(Exception):
    """An expression that can't be parsed or evaluated.

    line: line of the text, from 1; 0 if unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class UnknownName(ExpressionError):
    """An expression uses a name that is not defined (yet)."""


class LimitExceeded(Exception):
    """An expression that exceeds a limit."""


def _strings_with_expressions(value: Any) -> Iterator[str]:
    """Yield every string with an expression in a value, including nested ones."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value or "{#" in value:
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _strings_with_expressions(child)


def has_expression(value: Any) -> bool:
    """Return True if any string in a value, nested or not, contains an expression."""
    return any(_strings_with_expressions(value))


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """Return the names that a template uses but does not define. Raises ExpressionError for a syntax error."""
    try:
        template = _parse(text)
        if all(isinstance(node, nodes.Output) for node in template.body):  # no statement that assigns a name
            return frozenset(name.name for name in template.find_all(nodes.Name))
        return frozenset(meta.find_undeclared_variables(template))
    except Exception as error:  # both parsers raise their own errors for deep nesting
        line_number = _line_number_of(error)
        raise ExpressionError(
            f"bad expression in {_quote_text(text, line_number)}: {_describe_error(error)}", line_number
        ) from None


def line_of_name(text: str, name: str) -> int:
    """Return the first line of a template, from 1, that uses a name; 0 if none does."""
    return min((node.lineno for node in _ENV.parse(text).find_all(nodes.Name) if node.name == name), default=0)


def names_in_condition(expression: str) -> frozenset[str]:
    """Return the names that a bare expression (`when`, `until`) uses."""
    return names_in("{{ " + expression + " }}")


def names_in_value(value: Any) -> frozenset[str]:
    """Return the names that the strings of a value use, including nested ones."""
    return frozenset().union(*map(names_in, _strings_with_expressions(value)))


def render(value: Any, variables: Mapping[str, Any]) -> Any:
    """Return a value with its expressions evaluated. A string that is a single expression becomes that expression's value.

    Raises UnknownName for an undefined name, and ExpressionError for any other error.
    """
    if isinstance(value, str):
        return _render_text(value, variables) if has_expression(value) else value
    if isinstance(value, Mapping):
        return {key: render(child, variables) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [render(child, variables) for child in value]
    return value


def evaluate(expression: str, variables: Mapping[str, Any]) -> Any:
    """Return the value of a bare expression such as `when: image.changed`. Raises the same errors as `render`."""
    with _convert_errors(expression):
        return _compute_value(_compile_expression, expression, variables)


def all_true(conditions: Iterable[str], variables: Mapping[str, Any]) -> bool:
    """Return True if all conditions are true, as in Ansible's `when` list."""
    return all(to_bool(evaluate(condition, variables)) for condition in conditions)


def _render_text(text: str, variables: Mapping[str, Any]) -> Any:
    with _convert_errors(text):
        expression = _find_lone_expression(text)
        return (
            _compute_value(_compile_template, text, variables)
            if expression is None
            else _compute_value(_compile_expression, expression, variables)
        )


@functools.lru_cache(maxsize=1024)
def _find_lone_expression(text: str) -> str | None:
    """Return the expression of a string that is a single expression; None for any other string."""
    body = text.strip()
    if not (body.startswith("{{") and body.endswith("}}")):
        return None
    children = _parse(body).body
    is_single = len(children) == 1 and isinstance(children[0], nodes.Output) and len(children[0].nodes) == 1
    return body[2:-2].strip() if is_single else None


def _compute_value(compile_text: Callable[[str], Callable[..., Any]], text: str, variables: Mapping[str, Any]) -> Any:
    """Return the value of a string as plain data. Raises Jinja2's errors and LimitExceeded."""
    reset_steps()
    with limit_memory():
        if compile_text is _compile_expression:
            with contextlib.suppress(Exception):  # the compiled expression below raises it again
                return _to_plain_data(jinja.fold_expression(_parse("{{ " + text + " }}"), variables))
        evaluate_compiled = compile_text(text)
        return limit_cpu_time(lambda: _to_plain_data(evaluate_compiled(**variables)))


def _to_plain_data(value: Any) -> Any:
    """Return a value with lazy values as lists. Raises UndefinedError for an undefined value."""
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
    """Return the syntax tree of a string. It is cached, so callers must not change it."""
    return _ENV.parse(text)


@functools.lru_cache(maxsize=1024)
def _compile_template(text: str) -> Callable[..., Any]:
    return _ENV.from_string(text).render


@functools.lru_cache(maxsize=1024)
def _compile_expression(expression: str) -> Callable[..., Any]:
    _parse("{{ " + expression + " }}")  # raises for the template's limits, which `compile_expression` does not check
    return _ENV.compile_expression(expression, undefined_to_none=False)


@contextlib.contextmanager
def _convert_errors(text: str) -> Iterator[None]:
    """Convert errors within the block to ExpressionErrors that quote the expression."""
    try:
        yield
    except Exception as error:
        error_type = UnknownName if isinstance(error, UndefinedError) else ExpressionError
        line_number = _line_number_of(error)
        raise error_type(f"{_describe_error(error)} in {_quote_text(text, line_number)}", line_number) from None


def _line_number_of(error: BaseException) -> int:
    """Return the line of the template at which an error occurred; 0 if unknown."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    line_numbers = [
        line_number
        for frame, line_number in traceback.walk_tb(error.__traceback__)
        if TEMPLATE_FRAME_MARKER in frame.f_globals
    ]
    return line_numbers[-1] if line_numbers else 0


def _describe_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return f"needs more than {MAX_GROWTH_BYTES // 2**20} MiB of memory"
    return str(error).rstrip(".") or type(error).__name__


def _quote_text(text: str, line_number: int) -> str:
    """Quote a string for a message; of several lines, only the one with the error."""
    lines = text.split("\n")
    if len(lines) > 1 and 0 < line_number <= len(lines):
        text = lines[line_number - 1].strip()
    return repr(text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}...")


@contextmanager
def limit_memory() -> Iterator[None]:
    """Raise MemoryError within the block if the process grows by more than MAX_GROWTH_BYTES.

    Has no effect in a process with several threads, because the limit would apply to all of them.
    """
    current_bytes = _address_space_bytes() if threading.active_count() == 1 else 0
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
    """Return the result of `call`. Raises LimitExceeded from within it after MAX_CPU_S of CPU time.

    The time is checked in a trace function at each line, because a signal would only interrupt the main thread.
    """
    previous_trace, deadline_s = sys.gettrace(), time.thread_time() + MAX_CPU_S

    def check_deadline(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > deadline_s:
            raise LimitExceeded(f"takes more than {MAX_CPU_S:g} s")
        return check_deadline

    sys.settrace(check_deadline)
    try:
        return call()
    finally:
        sys.settrace(previous_trace)


def _address_space_bytes() -> int:
    """Return the size of this process's address space; 0 if the system does not report it (macOS)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()

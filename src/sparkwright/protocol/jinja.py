"""The Jinja2 environment of playbooks: sandboxed and limited, with sparkwright's filters and tests.

Templates may come from other people, and Jinja2's sandbox protects only attributes. Without limits, nested loops, `'a' * 10**10`
and a macro that calls itself twice would practically never end. expressions.py limits time and memory.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from sparkwright import shell
from sparkwright.units import format_gib
from sparkwright.visible import one_line

#: limit on the loop items, calls and operations of one rendering; sparkwright's longest template needs 500
MAX_STEPS = 200_000
#: limit on the characters of a string and the items of a list
MAX_SIZE = 1_000_000
#: limit on the exponent of a power; 2**MAX_EXPONENT is larger than any size in bytes
MAX_EXPONENT = 64
MAX_TEMPLATE_CHARS = 256 * 1024
#: limit on the nesting of blocks and operators
MAX_DEPTH = 50

#: nodes that can be folded: they call nothing and create nothing larger than their operands, and the parser limits their number.
#: Folding is therefore not watched by `expressions.limit_cpu_time`, which would take ten times as long
_SIMPLE_NODES = (
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Compare,
    nodes.Operand,
)

_usage = threading.local()


def to_bool(value: Any) -> bool:
    """Return a condition's truth value. As in YAML and Ansible, a string is true only if it is "1", "true", "yes" or "on"."""
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def create_environment() -> LimitedEnvironment:
    env = LimitedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    env.filters.update(
        quote=shell.quote,
        one_line=one_line,  # for comments, which a recipe's text must not end
        bool=to_bool,
        basename=posixpath.basename,
        dirname=posixpath.dirname,
        GiB=lambda size_bytes: f"{format_gib(size_bytes)} GiB",
    )
    env.tests.update(
        changed=lambda result: bool(result["changed"]),
        failed=lambda result: bool(result["failed"]),
        succeeded=lambda result: not result["failed"],
        skipped=lambda result: bool(result["skipped"]),
    )
    return env


def fold_expression(template: nodes.Template, variables: Mapping[str, Any]) -> Any:
    """Return the value of a template that is a single simple expression, computed from its syntax tree.

    Nearly all expressions in playbooks are simple, and compiling one would take 2 ms.

    Raises:
        nodes.Impossible: the template is not a simple expression.
        Exception: any error of evaluation.
    """
    match template.body:
        case [nodes.Output(nodes=[nodes.Expr() as expression])]:
            return _substitute_variables(expression, variables).as_const(nodes.EvalContext(expression.environment))  # type: ignore[arg-type]
    raise nodes.Impossible


def _substitute_variables(node: nodes.Node, variables: Mapping[str, Any]) -> Any:
    """Return the expression with variables replaced by their values. Raises nodes.Impossible."""
    if isinstance(node, nodes.Name):
        if node.name not in variables:
            raise nodes.Impossible
        return nodes.Const(variables[node.name])
    if not isinstance(node, _SIMPLE_NODES):
        raise nodes.Impossible
    return type(node)(*(_substitute_in_field(getattr(node, field), variables) for field in node.fields))


def _substitute_in_field(content: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(content, list):
        return [_substitute_in_field(child, variables) for child in content]
    return _substitute_variables(content, variables) if isinstance(content, nodes.Expr | nodes.Operand) else content


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with limits: loop items, calls and operations are counted, and sizes are checked before allocation."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {"_items": _with_step_counts, "_joined": _join_counted}
        for name in ("center", "indent", "format"):
            self.filters[name] = _with_width_check(self.filters[name])
        for name in ("join", "replace"):
            self.filters[name] = _with_size_check(self.filters[name])

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        output, size = [], 0
        for piece in pieces:
            size += len(piece)
            _check_sizes(size)
            output.append(piece)
        return "".join(output)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise SecurityError(f"the template has more than {MAX_TEMPLATE_CHARS:,} characters")
        try:
            parsed = super()._parse(source, name, filename)
            if len(source) >= MAX_DEPTH:  # a level takes at least a character
                _check_depth(parsed)
            tree: nodes.Template = _CountingTransformer().visit(parsed) if "for" in source or "~" in source else parsed
        except RecursionError:
            raise SecurityError("nested too deeply") from None
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        count_step()
        if operator == "*":
            _check_sizes(
                _size_of(left) * right if isinstance(right, int) else 0,
                _size_of(right) * left if isinstance(left, int) else 0,
            )
        elif operator == "+":
            _check_sizes(_size_of(left) + _size_of(right))
        elif operator == "**" and not (_is_small(right, MAX_EXPONENT) and _is_small(left, 2**MAX_EXPONENT)):
            raise SecurityError("a power is too large")
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        count_step()
        method = getattr(target, "__wrapped__", target)  # the sandbox wraps `str.format`
        if isinstance(getattr(method, "__self__", None), str):
            _check_text_method(method, args)
        return super().call(context, target, *args, **kwargs)


def _check_depth(template: nodes.Template) -> None:
    """Raise SecurityError for an expression that is nested too deeply, which would take minutes to compile."""
    level_nodes: list[nodes.Node] = [template]
    for _ in range(MAX_DEPTH):
        level_nodes = [child for node in level_nodes for child in node.iter_child_nodes()]
    if level_nodes:
        raise SecurityError("nested too deeply")


def reset_steps() -> None:
    """Set the step count of this thread to 0, before a rendering."""
    _usage.steps = 0


def count_step() -> None:
    """Count a step. Raises SecurityError if a rendering takes more than MAX_STEPS."""
    _usage.steps = getattr(_usage, "steps", 0) + 1
    if _usage.steps > MAX_STEPS:
        raise SecurityError(f"the template takes more than {MAX_STEPS:,} steps")


class _CountingTransformer(NodeTransformer):
    """Rewrites a template so that loop items are counted and the results of `~` are checked."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_items", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)


def _with_step_counts(items: Iterable[Any]) -> Iterable[Any]:
    return items if isinstance(items, list | tuple | dict) and not items else _iter_counted(items)


def _iter_counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        count_step()
        yield item


def _join_counted(parts: list[Any]) -> str:
    count_step()
    return LimitedEnvironment.concat(map(str, parts))


def _with_width_check(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its arguments, which determine the width of its output."""

    def check_and_call(text: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        _check_sizes(*(argument for argument in arguments if isinstance(argument, int)))
        if isinstance(text, str):
            _check_widths(text)
        line_count = text.count("\n") + 1 if isinstance(text, str) else 1
        widths = (argument if isinstance(argument, int) else _size_of(argument) for argument in arguments)
        _check_sizes(_size_of(text) + line_count * sum(widths))
        return filter_function(text, *args, **kwargs)

    return check_and_call


def _with_size_check(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks the size of its output, which may contain many copies of an argument.

    Jinja2 passes the context or environment as its first argument, according to `jinja_pass_arg`.
    """

    def check_and_call(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        pieces = list(value) if not isinstance(value, str) else [value]
        max_size = max((_size_of(argument) for argument in (*args, *kwargs.values())), default=0)
        _check_sizes(sum(_size_of(str(piece)) for piece in pieces) + max_size * (len(pieces) + _size_of(value)))
        return filter_function(context, pieces if not isinstance(value, str) else value, *args, **kwargs)

    check_and_call.jinja_pass_arg = filter_function.jinja_pass_arg  # type: ignore[attr-defined]
    return check_and_call


def _check_text_method(method: Any, args: tuple[Any, ...]) -> None:
    """Check a call to a string method whose output can be much longer than its arguments."""
    text, name = method.__self__, getattr(method, "__name__", "")
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _check_sizes(*(value * (len(text) if name == "expandtabs" else 1) for value in args if isinstance(value, int)))
    elif name in ("format", "format_map"):
        _check_widths(text)
    elif name in ("replace", "join"):
        pieces = list(args[0]) if name == "join" and args and not isinstance(args[0], str) else []
        max_size = max((_size_of(argument) for argument in args), default=0)
        _check_sizes((len(text) + 1) * (max_size + 1), sum(_size_of(piece) for piece in pieces))


def _check_widths(text: str) -> None:
    """Raise SecurityError for a format with a width of more than six digits."""
    digits = 0
    for character in text:
        digits = digits + 1 if character.isdecimal() else 0
        if digits > 6 and ("%" in text or "{" in text):
            raise SecurityError("a width in a format is too large")
    _check_sizes(len(text))


def _check_sizes(*sizes: int) -> None:
    if max(sizes, default=0) > MAX_SIZE:
        raise SecurityError(f"a string or list is larger than {MAX_SIZE:,}")


def _size_of(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _is_small(value: Any, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit

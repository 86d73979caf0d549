"""Jinja2's environment of a playbook: the sandbox, with this tool's filters and tests."""

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


def to_bool(value: Any) -> bool:
    """Return a value as a condition: the strings that YAML and Ansible accept for true are true, other strings are not."""
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def create_environment() -> LimitedEnvironment:
    env = LimitedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    env.filters.update(
        quote=shell.quote,
        one_line=one_line,  # for a comment: a recipe's text must not end it
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


# The value of a simple expression from Jinja2's syntax tree, by constant folding: no Python is generated and compiled.
#
# It handles names with their attributes and items, constants, `and`, `or`, `not` and comparisons: nearly all expressions of a
# playbook, and to compile one takes 2 ms. Everything else, and every error, is left to the compiled expression.

#: these call nothing and make nothing that is larger than what they are given, and the parser limits how many there are: what is
#: folded is not watched as `expressions.limit_cpu_time` does, which takes ten times as long as the folding
_SIMPLE = (nodes.Const, nodes.Getattr, nodes.Getitem, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand)


def fold_expression(template: nodes.Template, names: Mapping[str, Any]) -> Any:
    """Return the value of a template that is one simple expression.

    Raises nodes.Impossible for any other, and errors of evaluation.
    """
    match template.body:
        case [nodes.Output(nodes=[nodes.Expr() as expression])]:
            return _substitute_names(expression, names).as_const(nodes.EvalContext(expression.environment))  # type: ignore[arg-type]
    raise nodes.Impossible


def _substitute_names(node: nodes.Node, names: Mapping[str, Any]) -> Any:
    """Return the expression with the names' values in their place."""
    if isinstance(node, nodes.Name):
        if node.name not in names:
            raise nodes.Impossible
        return nodes.Const(names[node.name])
    if not isinstance(node, _SIMPLE):
        raise nodes.Impossible
    return type(node)(*(_substitute_part(getattr(node, name), names) for name in node.fields))


def _substitute_part(part: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_substitute_part(item, names) for item in part]
    return _substitute_names(part, names) if isinstance(part, nodes.Expr | nodes.Operand) else part


# Limits on a template: its steps, and the sizes of texts, lists and numbers. Templates come with recipes of others.
#
# Jinja's sandbox guards attributes, not work: nested loops, `'a' * 10**10` and a macro that calls itself twice would never end.
# expressions.py bounds the total cost.

#: items of loops, calls and operations of one rendering; the longest template here takes 500
MAX_STEPS = 200_000
#: characters of a text, items of a list
MAX_SIZE = 1_000_000
#: exponent of a power: 2**MAX_EXPONENT is larger than any size in bytes
MAX_EXPONENT = 64
MAX_TEMPLATE_CHARS = 256 * 1024
#: nesting of blocks and operators
MAX_DEPTH = 50

_usage = threading.local()


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with every loop, call and operation counted."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {"_items": _count_items, "_joined": _join_counted}
        for name in ("center", "indent", "format"):
            self.filters[name] = _with_width_check(self.filters[name])
        for name in ("join", "replace"):
            self.filters[name] = _with_size_check(self.filters[name])

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the output of a template or a macro."""
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
            if len(source) >= MAX_DEPTH:  # a level takes a character
                _refuse_depth(parsed)
            tree: nodes.Template = _CountingTransformer().visit(parsed) if "for" in source or "~" in source else parsed
        except RecursionError:
            raise SecurityError("nested too deeply") from None
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        count_steps()
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
        count_steps()
        method = getattr(target, "__wrapped__", target)  # the sandbox's own `format` wraps the text's
        if isinstance(getattr(method, "__self__", None), str):
            _check_text_method(method, args)
        return super().call(context, target, *args, **kwargs)


def _refuse_depth(template: nodes.Template) -> None:
    """Refuse an expression that is nested too deeply: compiling it would take minutes."""
    level: list[nodes.Node] = [template]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
    if level:
        raise SecurityError("nested too deeply")


def reset_steps() -> None:
    """Reset the counts for another rendering in this thread."""
    _usage.steps = 0


def count_steps(count: int = 1) -> None:
    """Count a step. Raises SecurityError if a rendering exceeds the limit."""
    _usage.steps = getattr(_usage, "steps", 0) + count
    if _usage.steps > MAX_STEPS:
        raise SecurityError(f"the template takes more than {MAX_STEPS:,} steps")


class _CountingTransformer(NodeTransformer):
    """Rewrites a template so that its loops, and the parts that `~` joins, are counted."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_items", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)


def _count_items(items: Iterable[Any]) -> Iterable[Any]:
    return items if isinstance(items, list | tuple | dict) and not items else _iter_counted(items)


def _iter_counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        count_steps()
        yield item


def _join_counted(parts: list[Any]) -> str:
    count_steps()
    return LimitedEnvironment.concat(map(str, parts))


def _with_width_check(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its numbers, which are widths of its output."""

    def check_and_call(text: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        _check_sizes(*(value for value in arguments if isinstance(value, int)))
        if isinstance(text, str):
            _check_widths(text)
        lines = text.count("\n") + 1 if isinstance(text, str) else 1
        _check_sizes(
            _size_of(text) + lines * sum(value if isinstance(value, int) else _size_of(value) for value in arguments)
        )
        return call(text, *args, **kwargs)

    return check_and_call


def _with_size_check(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks the size of its output, which has many copies of a text.

    Its first argument is the context or the like, the second its value.
    """

    def check_and_call(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        pieces = list(value) if not isinstance(value, str) else [value]
        longest = max((_size_of(kwarg) for kwarg in (*args, *kwargs.values())), default=0)
        _check_sizes(sum(_size_of(str(piece)) for piece in pieces) + longest * (len(pieces) + _size_of(value)))
        return call(context, pieces if not isinstance(value, str) else value, *args, **kwargs)

    check_and_call.jinja_pass_arg = call.jinja_pass_arg  # type: ignore[attr-defined]
    return check_and_call


def _check_text_method(method: Any, args: tuple[Any, ...]) -> None:
    """Check a text's own methods that pad, or that insert one text into another many times."""
    text, name = method.__self__, getattr(method, "__name__", "")
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _check_sizes(*(value * (len(text) if name == "expandtabs" else 1) for value in args if isinstance(value, int)))
    elif name in ("format", "format_map"):
        _check_widths(text)
    elif name in ("replace", "join"):
        pieces = list(args[0]) if name == "join" and args and not isinstance(args[0], str) else []
        longest = max((_size_of(value) for value in args), default=0)
        _check_sizes((len(text) + 1) * (longest + 1), sum(_size_of(piece) for piece in pieces))


def _check_widths(text: str) -> None:
    """Check a format: no width has more than six digits."""
    digits = 0
    for sign in text:
        digits = digits + 1 if sign.isdecimal() else 0
        if digits > 6 and ("%" in text or "{" in text):
            raise SecurityError("a width in a format is too large")
    _check_sizes(len(text))


def _check_sizes(*sizes: int) -> None:
    if max(sizes, default=0) > MAX_SIZE:
        raise SecurityError(f"a text or list is larger than {MAX_SIZE:,}")


def _size_of(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _is_small(value: Any, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit

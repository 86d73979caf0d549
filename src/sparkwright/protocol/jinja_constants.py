"""The value of a simple expression from Jinja2's syntax tree, by constant folding: no Python is generated and compiled.

It handles names with their attributes and items, constants, `and`, `or`, `not` and comparisons: nearly all expressions of a
playbook, and to compile one takes 2 ms. Everything else, and every error, is left to the compiled expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import nodes

#: these call nothing and make nothing that is larger than what they are given, and the parser limits how many there are: what is
#: folded is not watched as `expression_cost.timed` does, which takes ten times as long as the folding
_SIMPLE = (nodes.Const, nodes.Getattr, nodes.Getitem, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand)


def value(parsed: nodes.Template, names: Mapping[str, Any]) -> Any:
    """Return the value of a template that is one simple expression.

    Raises nodes.Impossible for any other, and errors of evaluation.
    """
    match parsed.body:
        case [nodes.Output(nodes=[nodes.Expr() as expression])]:
            return _filled(expression, names).as_const(nodes.EvalContext(expression.environment))  # type: ignore[arg-type]
    raise nodes.Impossible


def _filled(node: nodes.Node, names: Mapping[str, Any]) -> Any:
    """Return the expression with the names' values in their place."""
    if isinstance(node, nodes.Name):
        if node.name not in names:
            raise nodes.Impossible
        return nodes.Const(names[node.name])
    if not isinstance(node, _SIMPLE):
        raise nodes.Impossible
    return type(node)(*(_part(getattr(node, name), names) for name in node.fields))


def _part(part: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_part(item, names) for item in part]
    return _filled(part, names) if isinstance(part, nodes.Expr | nodes.Operand) else part

"""The signature of a module as plain data: a playbook is validated against it without importing the module's code."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from sparkwright.errors import Refused
from sparkwright.trust.secret_names import is_secret_name

#: a type as JSON: ["text"], ["list", of], ["mapping", of], ["one of", words], ["or", types]
ArgumentType = list[Any]

SCALAR_TYPES: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a module."""

    #: its name in Python
    field: str
    expected_type: ArgumentType
    required: bool
    #: its description, one sentence
    doc: str = ""


#: by the name in a playbook
Signature = Mapping[str, Argument]


def from_args_type(args_type: type[Any]) -> Signature:
    """Return the signature of a module's Args. Raises TypeError for a type that JSON does not have."""
    hints = typing.get_type_hints(args_type)
    return {
        playbook_name(field.name): Argument(
            field=field.name,
            expected_type=_argument_type(hints[field.name]),
            required=field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            doc=field.metadata.get("doc", ""),
        )
        for field in dataclasses.fields(args_type)
    }


def to_json(signature: Signature) -> dict[str, Any]:
    return {
        name: [argument.field, argument.expected_type, argument.required, argument.doc]
        for name, argument in signature.items()
    }


def from_json(data: Mapping[str, Any]) -> Signature:
    return {name: Argument(*row) for name, row in data.items()}


def playbook_name(field: str) -> str:
    """Return an argument's name in a playbook: `from` can't be the name of a field in Python, `from_` can."""
    return field.removesuffix("_")


def _argument_type(hint: Any) -> ArgumentType:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in SCALAR_TYPES:
        return [SCALAR_TYPES[hint]]
    if origin in (Union, types.UnionType):
        return ["or", [_argument_type(part) for part in parts]]
    if origin is typing.Literal:
        return ["one of", list(parts)]
    if origin is list:
        return ["list", _argument_type(parts[0])]
    if origin is dict:
        return ["mapping", _argument_type(parts[1])]
    raise TypeError(f"an argument can't be {hint}")


# Conversion of plain JSON to a module's Args, with errors that name the argument.
#
# The laptop validates with it, the host builds with it.

#: cached: every task of every host needs it
_SIGNATURES: dict[type[Any], Signature] = {}


def build_args(args_type: type[Any], values: Mapping[str, Any], *, module: str) -> Any:
    """Build the Args object. Raises Refused for an unknown, missing or mistyped argument, with the nearest right name."""
    arguments = _SIGNATURES.get(args_type) or _SIGNATURES.setdefault(args_type, from_args_type(args_type))
    return args_type(**check_arguments(arguments, values, module=module))


def check_arguments(
    arguments: Signature, values: Mapping[str, Any], *, module: str, open_names: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the validated values by field.

    Args:
        open_names: arguments whose value is not known yet, accepted unseen and left out.

    Raises:
        Refused: as `build_args` does.
    """
    for name in values:
        if name not in arguments:
            raise Refused(f"{module} has no argument `{name}`.", fix=_suggest_name(name, arguments))
    for name, argument in arguments.items():
        if argument.required and name not in values:
            raise Refused(f"{module} needs the argument `{name}` ({argument.doc}).")
    return {
        arguments[name].field: _convert(value, arguments[name].expected_type, f"{module}.{name}")
        for name, value in values.items()
        if name not in open_names
    }


def _suggest_name(name: str, arguments: Mapping[str, Argument]) -> str:
    import difflib

    near = difflib.get_close_matches(name, arguments, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"It takes: {', '.join(arguments) or 'none'}."


def _convert(value: Any, argument_type: ArgumentType, where: str) -> Any:
    """Return a value of the wanted type, or raise Refused. "5" is accepted for a number, 5 for a text; nothing else is
    converted."""
    kind, *inner = argument_type
    if kind == "anything":
        return value
    if kind == "or":
        return _convert_to_any(value, inner[0], where)
    if kind == "one of":
        if value in inner[0]:
            return value
        raise Refused(f"{where} is one of {', '.join(map(str, inner[0]))}, not {_quote_value(value, where)}.")
    if kind == "list" and isinstance(value, list | tuple):
        return [_convert(item, inner[0], f"{where}[{n}]") for n, item in enumerate(value)]
    if kind == "mapping" and isinstance(value, Mapping):
        return {str(key): _convert(item, inner[0], f"{where}.{key}") for key, item in value.items()}
    if kind in PYTHON_TYPES:
        return _convert_scalar(value, kind, where)
    raise Refused(f"{where} is {_describe_type(argument_type)}, not {_quote_value(value, where)}.")


def _convert_to_any(value: Any, choices: list[ArgumentType], where: str) -> Any:
    if value is None and ["null"] in choices:
        return None
    choices = [choice for choice in choices if choice != ["null"]]
    exact = [choice for choice in choices if type(value) is PYTHON_TYPES.get(choice[0])]
    for item in exact + choices:
        try:
            return _convert(value, item, where)
        except Refused:
            continue
    raise Refused(f"{where} is {' or '.join(map(_describe_type, choices))}, not {_quote_value(value, where)}.")


PYTHON_TYPES: dict[str, type[Any]] = {"text": str, "whole number": int, "number": float, "true or false": bool}
NUMBER_PARSERS: dict[str, Callable[[str], Any]] = {"whole number": int, "number": float}


def _convert_scalar(value: Any, kind: str, where: str) -> Any:
    converted = _coerce_scalar(value, kind)
    if converted is None:
        raise Refused(f"{where} is {_describe_type([kind])}, not {_quote_value(value, where)}.")
    # all numbers are counts, sizes, times or shares; this also refuses NaN
    if kind in NUMBER_PARSERS and not 0 <= converted < math.inf:
        raise Refused(f"{where} must be at least 0, got {_quote_value(value, where)}.")
    return converted


def _coerce_scalar(value: Any, kind: str) -> Any:
    """Convert a value to its kind; None if that is not possible."""
    if type(value) is PYTHON_TYPES[kind]:
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "number" and is_number:
        return float(value)
    if kind in NUMBER_PARSERS and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return NUMBER_PARSERS[kind](value)
    return str(value) if kind == "text" and is_number else None


def _quote_value(value: Any, where: str) -> str:
    """Return a value as a message quotes it, unless it has the name of a secret."""
    return "what is written there" if any(map(is_secret_name, re.split(r"[.\[]", where))) else repr(value)


def _describe_type(argument_type: ArgumentType) -> str:
    kind = str(argument_type[0])
    return kind if kind in ("true or false", "one of") else f"a {kind}"

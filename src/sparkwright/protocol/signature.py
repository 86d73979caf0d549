"""Represent modules' signatures as plain data, and validate arguments against them.

The laptop validates a playbook without importing the modules' code; the host builds their Args.
"""

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

#: a type as JSON: ["text"], ["list", item type], ["mapping", value type], ["one of", values], ["or", types]
ArgumentType = list[Any]

#: permissions of a file. A number is refused, because YAML reads 0644 as 420
FileMode = typing.NewType("FileMode", str)
FILE_MODE = "octal digits"

SCALAR_TYPES: dict[Any, str] = {
    str: "text",
    FileMode: FILE_MODE,
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}
PYTHON_TYPES: dict[str, type[Any]] = {"text": str, "whole number": int, "number": float, "true or false": bool}
NUMBER_PARSERS: dict[str, Callable[[str], Any]] = {"whole number": int, "number": float}
#: cache, because each task of each host needs the signature of its module
_SIGNATURE_CACHE: dict[type[Any], Signature] = {}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a module."""

    #: name of the field in the module's Args
    field: str
    expected_type: ArgumentType
    required: bool
    #: one sentence
    doc: str = ""


#: arguments by their names in a playbook
Signature = Mapping[str, Argument]


def from_args_type(args_type: type[Any]) -> Signature:
    """Return the signature of a module's Args. Raises TypeError for a type that JSON can't represent."""
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
    """Return an argument's name in a playbook, where the field `from_` is `from`, a keyword in Python."""
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


def build_args(args_type: type[Any], values: Mapping[str, Any], *, module: str) -> Any:
    """Return the Args for a task's arguments. Raises Refused as `validate_arguments` does."""
    signature = _SIGNATURE_CACHE.get(args_type) or _SIGNATURE_CACHE.setdefault(args_type, from_args_type(args_type))
    return args_type(**validate_arguments(signature, values, module=module))


def validate_arguments(
    arguments: Signature, values: Mapping[str, Any], *, module: str, unresolved: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the validated values by field.

    Args:
        unresolved: arguments whose values only the host can compute; they are neither validated nor returned.

    Raises:
        Refused: an argument is unknown, missing or of the wrong type.
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
        if name not in unresolved
    }


def _suggest_name(name: str, arguments: Mapping[str, Argument]) -> str:
    import difflib

    matches = difflib.get_close_matches(name, arguments, n=1)
    return f"Did you mean `{matches[0]}`?" if matches else f"Arguments: {', '.join(arguments) or 'none'}."


def _convert(value: Any, argument_type: ArgumentType, argument_path: str) -> Any:
    """Return a value of the given type. Raises Refused if it has another type.

    Only "5" for a number and 5 for a string are converted.
    """
    kind, *inner = argument_type
    if kind == "anything":
        return value
    if kind == FILE_MODE:
        if isinstance(value, str) and re.fullmatch(r"[0-7]{3,4}|", value):
            return value
        expected, received = 'octal digits in quotes, such as "0644"', _quote_value(value, argument_path)
        raise Refused(f"{argument_path} must be {expected}, got {received}.")
    if kind == "or":
        return _convert_to_any(value, inner[0], argument_path)
    if kind == "one of":
        if value in inner[0]:
            return value
        raise Refused(
            f"{argument_path} must be one of {', '.join(map(str, inner[0]))}, got {_quote_value(value, argument_path)}."
        )
    if kind == "list" and isinstance(value, list | tuple):
        return [_convert(item, inner[0], f"{argument_path}[{n}]") for n, item in enumerate(value)]
    if kind == "mapping" and isinstance(value, Mapping):
        return {str(key): _convert(item, inner[0], f"{argument_path}.{key}") for key, item in value.items()}
    if kind in PYTHON_TYPES:
        return _convert_scalar(value, kind, argument_path)
    raise Refused(f"{argument_path} must be {_describe_type(argument_type)}, got {_quote_value(value, argument_path)}.")


def _convert_to_any(value: Any, choices: list[ArgumentType], argument_path: str) -> Any:
    if value is None and ["null"] in choices:
        return None
    choices = [choice for choice in choices if choice != ["null"]]
    exact_choices = [choice for choice in choices if type(value) is PYTHON_TYPES.get(choice[0])]
    for choice in exact_choices + choices:
        try:
            return _convert(value, choice, argument_path)
        except Refused:
            continue
    expected = " or ".join(map(_describe_type, choices))
    raise Refused(f"{argument_path} must be {expected}, got {_quote_value(value, argument_path)}.")


def _convert_scalar(value: Any, kind: str, argument_path: str) -> Any:
    converted = _coerce_scalar(value, kind)
    if converted is None:
        raise Refused(f"{argument_path} must be {_describe_type([kind])}, got {_quote_value(value, argument_path)}.")
    # all numbers are counts, sizes, times or shares; this also refuses NaN
    if kind in NUMBER_PARSERS and not 0 <= converted < math.inf:
        raise Refused(f"{argument_path} must be at least 0, got {_quote_value(value, argument_path)}.")
    return converted


def _coerce_scalar(value: Any, kind: str) -> Any:
    """Return a value converted to a kind in PYTHON_TYPES, or None if it can't be."""
    if type(value) is PYTHON_TYPES[kind]:
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "number" and is_number:
        return float(value)
    if kind in NUMBER_PARSERS and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return NUMBER_PARSERS[kind](value)
    return str(value) if kind == "text" and is_number else None


def _quote_value(value: Any, argument_path: str) -> str:
    """Return a value as quoted in a message, or a placeholder if its name is that of a secret."""
    return "a hidden value" if any(map(is_secret_name, re.split(r"[.\[]", argument_path))) else repr(value)


def _describe_type(argument_type: ArgumentType) -> str:
    kind = str(argument_type[0])
    if kind == "text":
        return "a string"
    return kind if kind in ("true or false", "one of") else f"a {kind}"

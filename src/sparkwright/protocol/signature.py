"""The signature of a module as plain data: a playbook is validated against it without importing the module's code."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

#: a type as JSON: ["text"], ["list", of], ["mapping", of], ["one of", words], ["or", types]
Wanted = list[Any]

SCALARS: dict[Any, str] = {
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
    wanted: Wanted
    required: bool
    #: its description, one sentence
    doc: str = ""


#: by the name in a playbook
Signature = Mapping[str, Argument]


def of(args_type: type[Any]) -> Signature:
    """Return the signature of a module's Args. Raises TypeError for a type that JSON does not have."""
    hints = typing.get_type_hints(args_type)
    return {
        spelled(field.name): Argument(
            field=field.name,
            wanted=_wanted(hints[field.name]),
            required=field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            doc=field.metadata.get("doc", ""),
        )
        for field in dataclasses.fields(args_type)
    }


def to_json(signature: Signature) -> dict[str, Any]:
    return {
        name: [argument.field, argument.wanted, argument.required, argument.doc] for name, argument in signature.items()
    }


def from_json(data: Mapping[str, Any]) -> Signature:
    return {name: Argument(*row) for name, row in data.items()}


def spelled(field: str) -> str:
    """Return an argument's name in a playbook: `from` can't be the name of a field in Python, `from_` can."""
    return field.removesuffix("_")


def _wanted(hint: Any) -> Wanted:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in SCALARS:
        return [SCALARS[hint]]
    if origin in (Union, types.UnionType):
        return ["or", [_wanted(part) for part in parts]]
    if origin is typing.Literal:
        return ["one of", list(parts)]
    if origin is list:
        return ["list", _wanted(parts[0])]
    if origin is dict:
        return ["mapping", _wanted(parts[1])]
    raise TypeError(f"an argument can't be {hint}")

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
from sparkwright.trust.secret_names import names_a_secret

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


# Conversion of plain JSON to a module's Args, with errors that name the argument.
#
# The laptop validates with it, the host builds with it.

#: cached: every task of every host needs it
_SIGNATURES: dict[type[Any], Signature] = {}


def build(args_type: type[Any], values: Mapping[str, Any], *, module: str) -> Any:
    """Build the Args object. Raises Refused for an unknown, missing or mistyped argument, with the nearest right name."""
    takes = _SIGNATURES.get(args_type) or _SIGNATURES.setdefault(args_type, of(args_type))
    return args_type(**check_arguments(takes, values, module=module))


def check_arguments(
    takes: Signature, values: Mapping[str, Any], *, module: str, open_names: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the validated values by field.

    Args:
        open_names: arguments whose value is not known yet, accepted unseen and left out.

    Raises:
        Refused: as `build` does.
    """
    for name in values:
        if name not in takes:
            raise Refused(f"{module} has no argument `{name}`.", fix=_hint(name, takes))
    for name, argument in takes.items():
        if argument.required and name not in values:
            raise Refused(f"{module} needs the argument `{name}` ({argument.doc}).")
    return {
        takes[name].field: _fit(value, takes[name].wanted, f"{module}.{name}")
        for name, value in values.items()
        if name not in open_names
    }


def _hint(name: str, takes: Mapping[str, Argument]) -> str:
    import difflib

    near = difflib.get_close_matches(name, takes, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"It takes: {', '.join(takes) or 'none'}."


def _fit(value: Any, wanted: Wanted, where: str) -> Any:
    """Return a value of the wanted type, or raise Refused. "5" is accepted for a number, 5 for a text; nothing else is
    converted."""
    kind, *of = wanted
    if kind == "anything":
        return value
    if kind == "or":
        return _fit_any(value, of[0], where)
    if kind == "one of":
        if value in of[0]:
            return value
        raise Refused(f"{where} is one of {', '.join(map(str, of[0]))}, not {_shown(value, where)}.")
    if kind == "list" and isinstance(value, list | tuple):
        return [_fit(item, of[0], f"{where}[{n}]") for n, item in enumerate(value)]
    if kind == "mapping" and isinstance(value, Mapping):
        return {str(key): _fit(item, of[0], f"{where}.{key}") for key, item in value.items()}
    if kind in EXACT:
        return _fit_scalar(value, kind, where)
    raise Refused(f"{where} is {_name(wanted)}, not {_shown(value, where)}.")


def _fit_any(value: Any, choices: list[Wanted], where: str) -> Any:
    if value is None and ["null"] in choices:
        return None
    choices = [choice for choice in choices if choice != ["null"]]
    exact = [choice for choice in choices if type(value) is EXACT.get(choice[0])]
    for item in exact + choices:
        try:
            return _fit(value, item, where)
        except Refused:
            continue
    raise Refused(f"{where} is {' or '.join(map(_name, choices))}, not {_shown(value, where)}.")


EXACT: dict[str, type[Any]] = {"text": str, "whole number": int, "number": float, "true or false": bool}
READ: dict[str, Callable[[str], Any]] = {"whole number": int, "number": float}


def _fit_scalar(value: Any, kind: str, where: str) -> Any:
    fitted = _bent(value, kind)
    if fitted is None:
        raise Refused(f"{where} is {_name([kind])}, not {_shown(value, where)}.")
    if kind in READ and not 0 <= fitted < math.inf:  # nor is a NaN; they are counts, sizes, times and shares
        raise Refused(f"{where} must be at least 0, got {_shown(value, where)}.")
    return fitted


def _bent(value: Any, kind: str) -> Any:
    """Convert a value to its kind; None if that is not possible."""
    if type(value) is EXACT[kind]:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "number" and number:
        return float(value)
    if kind in READ and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return READ[kind](value)
    return str(value) if kind == "text" and number else None


def _shown(value: Any, where: str) -> str:
    """Return a value as a message quotes it, unless it has the name of a secret."""
    return "what is written there" if any(map(names_a_secret, re.split(r"[.\[]", where))) else repr(value)


def _name(wanted: Wanted) -> str:
    kind = str(wanted[0])
    return kind if kind in ("true or false", "one of") else f"a {kind}"

"""From plain JSON to a module's Args, with the mistakes named: the laptop checks with it, the host builds with it."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from sparkwright.errors import Refused

#: looked up once: every task of every host asks
_HINTS: dict[type[Any], dict[str, Any]] = {}


def build(
    args_type: type[Any], values: Mapping[str, Any], *, module: str, open_names: frozenset[str] = frozenset()
) -> Any:
    """The Args object. open_names: arguments not known yet, accepted unseen (the result then is None).

    Raises Refused for an unknown, missing or mistyped argument, with the nearest right name.
    """
    fields = {spelled(field.name): field for field in dataclasses.fields(args_type)}
    for name in values:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"It takes: {', '.join(fields) or 'none'}."
            raise Refused(f"{module} has no argument `{name}`.", fix=hint)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise Refused(f"{module} needs the argument `{name}` ({field.metadata.get('doc', '')}).")
    hints = _HINTS.get(args_type) or _HINTS.setdefault(args_type, typing.get_type_hints(args_type))
    known = {
        fields[n].name: _fit(v, hints[fields[n].name], f"{module}.{n}")
        for n, v in values.items()
        if n not in open_names
    }
    return None if open_names else args_type(**known)


def spelled(field: str) -> str:
    """An argument as a playbook spells it: `from` can't be a field's name in Python, `from_` can."""
    return field.removesuffix("_")


def _fit(value: Any, wanted: Any, where: str) -> Any:
    """The value as the type that is wanted, or Refused. "5" fits int, 5 fits float and str; nothing else is bent."""
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if origin in (Union, types.UnionType):
        return _fit_any(value, parts, where)
    if origin is typing.Literal:
        if value in parts:
            return value
        raise Refused(f"{where} is one of {', '.join(map(str, parts))}, not {value!r}.")
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return origin(_fit(item, parts[0] if parts else Any, f"{where}[{n}]") for n, item in enumerate(value))
    if (origin is dict or wanted is dict) and isinstance(value, Mapping):
        kind = parts[1] if parts else Any
        return {str(key): _fit(item, kind, f"{where}.{key}") for key, item in value.items()}
    if isinstance(wanted, type) and not origin:
        return _fit_scalar(value, wanted, where)
    raise Refused(f"{where} is {_name(wanted)}, not {value!r}.")


def _fit_any(value: Any, parts: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in parts:
        return None
    choices = [part for part in parts if part is not type(None)]
    exact = [part for part in choices if isinstance(part, type) and type(value) is part]
    for part in exact + choices:
        try:
            return _fit(value, part, where)
        except Refused:
            continue
    raise Refused(f"{where} is {' or '.join(map(_name, choices))}, not {value!r}.")


def _fit_scalar(value: Any, wanted: type[Any], where: str) -> Any:
    if type(value) is wanted:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is float and number:
        return float(value)
    if wanted in (int, float) and isinstance(value, str):
        try:
            return wanted(value)
        except ValueError:
            pass
    if wanted is str and number:
        return str(value)
    raise Refused(f"{where} is {_name(wanted)}, not {value!r}.")


def _name(wanted: Any) -> str:
    simple = {
        str: "a text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        dict: "a mapping",
        list: "a list",
    }
    return simple.get(wanted) or simple.get(typing.get_origin(wanted) or wanted) or str(wanted)

"""What a value from outside must look like, as data, and the check that it does.

A shape is one of these:
    str  bool  int  float  object    a value of this type; float takes whole numbers too, bool is neither; object takes anything
    None                             null
    (A, B)                           A or B
    [A]                              a list of A
    {str: A}                         an object whose values are A
    {"name": A, "more": Usual(B, b)} an object with these fields; a Usual one may be missing; others stay as they are
    frozenset(...)                   one of these texts
    a compiled pattern               a text that matches it from end to end
    a function                       whatever it returns; it raises ValueError for what does not fit
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkwright.trust.visible import one_line

Shape = Any
ABSENT = object()
NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
#: seconds since the epoch that every calendar shows: to the end of the year 9998
LAST_MOMENT_S = 253_370_764_800


@dataclass(frozen=True, slots=True)
class Usual:
    """A field that may be missing, and what it is then; without a value it stays missing."""

    shape: Shape
    value: Any = ABSENT


def fitted(value: Any, shape: Shape, where: str) -> Any:
    """The value as its shape says, missing fields filled in. Raises ValueError that names the place below WHERE."""
    if isinstance(shape, dict):
        return _object(value, shape, where)
    if isinstance(shape, list):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} is not a list")
        return [fitted(one, shape[0], where) for one in value]
    if isinstance(shape, tuple):
        return _any_of(value, shape, where)
    if isinstance(shape, frozenset):
        if isinstance(value, str) and value in shape:
            return value
        raise ValueError(f"{where} is none of {', '.join(sorted(shape))}")
    if isinstance(shape, re.Pattern):
        if isinstance(value, str) and shape.fullmatch(value):
            return value
        raise ValueError(f"{where} is not valid")
    if shape is None or isinstance(shape, type):
        return _typed(value, shape, where)
    try:
        return shape(value)
    except ValueError as error:
        raise ValueError(f"{where} {error}") from None


def line(value: Any) -> str:
    """A shape: text for one line; its newlines become visible."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return one_line(value)


def within(low: float, high: float) -> Callable[[Any], Any]:
    """A shape: a number in these bounds."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"is not a number from {low:g} to {high:g}")
        return value

    return check


#: a shape: seconds since the epoch
moment = within(0, LAST_MOMENT_S)


def _object(value: Any, shape: dict[Any, Shape], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object")
    if str in shape:
        return {key: fitted(one, shape[str], f"{where}.{key}") for key, one in value.items()}
    found = dict(value)
    for name, field in shape.items():
        usual = isinstance(field, Usual)
        if name in value:
            found[name] = fitted(value[name], field.shape if usual else field, f"{where}.{name}")
        elif usual and field.value is not ABSENT:
            found[name] = copy.copy(field.value)
        elif not usual:
            raise ValueError(f"{where} has no {name}")
    return found


def _any_of(value: Any, shapes: tuple[Shape, ...], where: str) -> Any:
    why = ""
    for shape in shapes:
        try:
            return fitted(value, shape, where)
        except ValueError as error:
            why = str(error)
    raise ValueError(why)


def _typed(value: Any, kind: type[Any] | None, where: str) -> Any:
    if kind is object:
        return value
    if kind is None:
        if value is None:
            return None
        raise ValueError(f"{where} is not null")
    wanted = (int, float) if kind is float else kind
    if isinstance(value, wanted) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{where} is not {NAMES[kind]}")

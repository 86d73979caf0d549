"""What JSON from outside must look like before code reads it: a shape is data, and the first part that does not fit is named.

A shape is a type (str, int, float, bool, dict, list, object), `[shape]` for a list, `{str: shape}` for a mapping of any keys,
or `{"key": shape, "other?": shape}` for a mapping with these keys; "?" may be absent or null. Other keys are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Failed
from sparkwright.trust.visible import one_line


def checked(value: Any, shape: Any, what: str) -> Any:
    """The value, when it has the shape. Raises Failed that names WHAT and the part of it that has not."""
    wrong = misfit(value, shape)
    if wrong is None:
        return value
    raise Failed(
        f"{what} is not valid" + (f": {one_line(wrong, at_most=80)} is missing or of the wrong type." if wrong else ".")
    )


def misfit(value: Any, shape: Any) -> str | None:
    """The first part that does not fit, as `Config.Env[2]`; empty for the whole; None when all fits."""
    if isinstance(shape, list):
        return _of_list(value, shape[0])
    if isinstance(shape, Mapping):
        return _of_mapping(value, shape)
    if shape in (int, float) and isinstance(value, bool):
        return ""
    return None if isinstance(value, shape) else ""


def _of_list(value: Any, shape: Any) -> str | None:
    if not isinstance(value, list):
        return ""
    found = ((n, misfit(one, shape)) for n, one in enumerate(value))
    return next((_joined(f"[{n}]", wrong) for n, wrong in found if wrong is not None), None)


def _of_mapping(value: Any, shape: Mapping[Any, Any]) -> str | None:
    if not isinstance(value, dict):
        return ""
    for key, part in shape.items():
        if key is str:
            wrong = next(
                (_joined(name, at) for name, one in value.items() if (at := misfit(one, part)) is not None), None
            )
        else:
            name = key.removesuffix("?")
            absent = name != key and value.get(name) is None
            at = None if absent else misfit(value.get(name), part)
            wrong = None if at is None else _joined(name, at)
        if wrong is not None:
            return wrong
    return None


def _joined(name: str, rest: str) -> str:
    return f"{name}{'' if not rest or rest.startswith('[') else '.'}{rest}"

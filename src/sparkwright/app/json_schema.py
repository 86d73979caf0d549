"""The JSON Schema of a shape (trust/shapes.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright.protocol import event_reader
from sparkwright.trust import shapes
from sparkwright.trust.shapes import Shape, Usual

Schema = dict[str, Any]

TYPES: Mapping[Any, str] = {
    None: "null",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}
#: functions that check integers, and names of functions that check numbers; all others check texts
COUNTS: tuple[Callable[..., Any], ...] = (event_reader.exit_code, shapes.integer)
NUMBERS = ("within",)


def shape_schema(shape: Shape) -> Schema:
    """Return the JSON Schema of a shape whose defaults are filled in: a Usual field with a value is always present."""
    if isinstance(shape, dict):
        return _object(shape)
    if isinstance(shape, list):
        return {"type": "array", "items": shape_schema(shape[0])}
    if isinstance(shape, tuple):
        return {"anyOf": [shape_schema(item) for item in shape]}
    if isinstance(shape, frozenset):
        return {"enum": sorted(shape)}
    if isinstance(shape, re.Pattern):
        return {"type": "string"}
    if shape is object:
        return {}
    if shape in TYPES:
        return {"type": TYPES[shape]}
    return {"type": _of_function(shape)}


def _object(shape: Mapping[Any, Shape]) -> Schema:
    for names in (str, shapes.text):
        if names in shape:
            return {"type": "object", "additionalProperties": shape_schema(shape[names])}
    fields = {name: value.shape if isinstance(value, Usual) else value for name, value in shape.items()}
    needed = [name for name, value in shape.items() if not isinstance(value, Usual) or value.value is not shapes.ABSENT]
    return {
        "type": "object",
        "properties": {name: shape_schema(field) for name, field in fields.items()},
        "required": needed,
    }


def _of_function(check: Callable[..., Any]) -> str:
    if check in COUNTS:
        return "integer"
    return "number" if check.__qualname__.split(".")[0] in NUMBERS else "string"

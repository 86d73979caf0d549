"""Convert a shape (trust/shapes.py) to a JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright.protocol import event_shapes
from sparkwright.trust import shapes
from sparkwright.trust.shapes import OptionalField, Shape

Schema = dict[str, Any]

JSON_TYPES: Mapping[Any, str] = {
    None: "null",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}
#: functions that check integers; any function in neither of these tuples checks a string
INTEGER_CHECKS: tuple[Callable[..., Any], ...] = (event_shapes.exit_code, shapes.integer)
#: names of functions that build checks of numbers
NUMBER_CHECKS = (shapes.number_between.__name__,)


def shape_schema(shape: Shape) -> Schema:
    """Return the JSON Schema of data whose defaults have been filled in: an OptionalField with a default is required."""
    if isinstance(shape, dict):
        return _object_schema(shape)
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
    if shape in JSON_TYPES:
        return {"type": JSON_TYPES[shape]}
    return {"type": _type_of_check(shape)}


def _object_schema(shape: Mapping[Any, Shape]) -> Schema:
    for names in (str, shapes.text):
        if names in shape:
            return {"type": "object", "additionalProperties": shape_schema(shape[names])}
    fields = {name: value.shape if isinstance(value, OptionalField) else value for name, value in shape.items()}
    required = [
        name
        for name, value in shape.items()
        if not isinstance(value, OptionalField) or value.value is not shapes.ABSENT
    ]
    return {
        "type": "object",
        "properties": {name: shape_schema(field) for name, field in fields.items()},
        "required": required,
    }


def _type_of_check(check: Callable[..., Any]) -> str:
    if check in INTEGER_CHECKS:
        return "integer"
    return "number" if check.__qualname__.split(".")[0] in NUMBER_CHECKS else "string"

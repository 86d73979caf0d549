"""Schemas for untrusted values, expressed as data, and validation against them.

A shape is one of these:
    str  bool  int  float  object           a value of this type; float includes int, int excludes bool, object is any value
    None                                    null
    (A, B)                                  A or B
    [A]                                     a list of A
    {str: A}  {text: A}                     an object with values A; `text` excludes names that can't be encoded
    {"a": A, "b": OptionalField(B, value)}  an object with these fields; other fields are kept
    frozenset(...)                          one of these strings
    a compiled pattern                      a string that matches completely
    a function                              its result for the value; it raises ValueError for an invalid one

`validate` and `validate_or_fail` reject the whole value if a part is invalid. A `Partial`, also a shape, drops invalid fields.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparkwright.errors import Failed
from sparkwright.trust.bounds import MAX_NUMBER
from sparkwright.visible import one_line

Shape = Any
DataclassT = TypeVar("DataclassT")
ABSENT = object()
TYPE_NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
#: largest time in seconds since the epoch that every calendar can represent, at the end of the year 9998
MAX_TIME_S = 253_370_764_800
#: limits on an engine's options and the length of an option's shape; vLLM 0.32.0 has 320 options with up to 900 characters
MAX_OPTIONS, MAX_SHAPE_CHARS = 2000, 8000
_VERSION_PATTERN = re.compile(r"\d[\w.+-]{0,40}")
_OPTION_NAME_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]{0,100}")
_OPTION_SHAPE_PATTERN = re.compile(r"[\w .,{}?*+:/-]*")


class ShapeError(ValueError):
    """Raised for a value that does not match its shape.

    Args:
        reason: such as "is not text".
        location: position of the part in the value, such as `.Config.Env[2]`.
        missing: name of the missing field, if that is the reason.
        path: the components of `location`.
    """

    def __init__(self, reason: str, location: str = "", missing: str = "", path: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"{location.removeprefix('.')} {reason}".lstrip())
        self.reason, self.location, self.missing, self.path = reason, location, missing, path


@dataclass(frozen=True, slots=True)
class OptionalField:
    """A field that may be missing."""

    shape: Shape
    #: default; ABSENT to leave the field out
    value: Any = ABSENT


def optional(shape: Shape) -> OptionalField:
    """Return the shape of a field that may be missing or null."""
    return OptionalField((None, shape))


@dataclass(frozen=True, slots=True)
class Partial:
    """The shape of an object whose invalid fields are dropped, for files that may be damaged or of another version."""

    fields: Mapping[str, Shape] = field(default_factory=dict)
    #: names of required fields
    required: tuple[str, ...] = ()
    #: True if an unknown or invalid field makes the whole object invalid
    strict: bool = False

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ShapeError("is not an object")
        valid: dict[str, Any] = {}
        for name, field_value in value.items():
            try:
                if name not in self.fields and self.strict:
                    raise ShapeError("is not known")
                valid[name] = _validate(field_value, self.fields.get(name, object))
            except ValueError as error:
                if self.strict:
                    raise _nest_error(error, f".{name}", name) from None
        for name in self.required:
            if name not in valid:
                raise ShapeError(f"has no {name}", missing=name)
        return valid

    def valid_part(self, value: Any) -> dict[str, Any] | None:
        """Return the valid fields of an object, or None if the object as a whole is invalid."""
        try:
            return self(value)
        except ValueError:
            return None


def validate(value: Any, shape: Shape, where: str) -> Any:
    """Return a value that matches its shape, with defaults filled in.

    Raises ShapeError with the location of the invalid part. where: name of the value, which begins the location.
    """
    try:
        return _validate(value, shape)
    except ValueError as error:
        raise _nest_error(error, where) from None


def validate_or_fail(value: Any, shape: Shape, subject: str) -> Any:
    """Return the value like `validate`. Raises Failed with the location of the invalid part. subject: begins the message."""
    try:
        return _validate(value, shape)
    except ValueError as error:
        failure = _nest_error(error, "")
        location = f"{failure.location}.{failure.missing}" if failure.missing else failure.location
        part = one_line(location.removeprefix("."), max_chars=80)
        reason = f": {part} is missing or of the wrong type." if part else "."
        raise Failed(f"{subject} is not valid{reason}") from None


def select_valid(shape: Partial, values: Any) -> list[dict[str, Any]]:
    """Return the valid fields of each object in a list, without invalid objects; empty if the value is not a list."""
    valid_parts = map(shape.valid_part, values) if isinstance(values, list) else ()
    return [valid_part for valid_part in valid_parts if valid_part is not None]


def build_dataclass(dataclass_type: type[DataclassT], data: Mapping[str, Any], **fields: Any) -> DataclassT:
    """Construct a dataclass from a validated JSON object, ignoring unknown fields, which a newer version may send.

    fields: values that override those of data.
    """
    names = {field.name for field in dataclasses.fields(dataclass_type) if field.init}  # type: ignore[arg-type]
    return dataclass_type(**{name: value for name, value in {**data, **fields}.items() if name in names})


def line(value: Any) -> str:
    """Return a string with newlines and invisible characters escaped."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return one_line(value)


def text(value: Any) -> str:
    """Return a string that can be encoded as UTF-8, which excludes lone surrogates."""
    if not isinstance(value, str) or any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("is not text")
    return value


def number_between(low: float, high: float) -> Callable[[Any], Any]:
    """Return the shape of a number within bounds."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"is not a number from {low:g} to {high:g}")
        return value

    return check


#: shape of a time in seconds since the epoch
moment = number_between(0, MAX_TIME_S)
#: shape of a number from a host
number = number_between(-MAX_NUMBER, MAX_NUMBER)


def integer(value: Any) -> int:
    """Return a whole number from a host."""
    if not isinstance(value, int):
        raise ValueError("is not a whole number")
    return int(number(value))


def row(*shapes: Shape) -> Callable[[Any], Any]:
    """Return the shape of a list with a fixed number of values, each with its own shape."""

    def check(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(shapes):
            raise ValueError(f"is not a list of {len(shapes)}")
        return [_validate(item, shape) for item, shape in zip(value, shapes, strict=True)]

    return check


def writable(value: Any) -> Any:
    """Return a JSON value of any type that can be serialized again."""
    try:
        json.dumps(value, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("can't be written as JSON") from None
    return value


def _validate(value: Any, shape: Shape) -> Any:
    if isinstance(shape, dict):
        return _validate_object(value, shape)
    if isinstance(shape, list):
        return _validate_list(value, shape[0])
    if isinstance(shape, tuple):
        return _validate_any(value, shape)
    if isinstance(shape, frozenset):
        if isinstance(value, str) and value in shape:
            return value
        raise ShapeError(f"is none of {', '.join(sorted(shape))}")
    if isinstance(shape, re.Pattern):
        if isinstance(value, str) and shape.fullmatch(value):
            return value
        raise ShapeError("is not valid")
    if shape is None or isinstance(shape, type):
        return _validate_type(value, shape)
    return shape(value)


def _nest_error(error: ValueError, prefix: str, *path: str | int) -> ShapeError:
    """Return the error with the location of its value inside an outer value prepended."""
    failure = error if isinstance(error, ShapeError) else ShapeError(str(error))
    return ShapeError(failure.reason, prefix + failure.location, failure.missing, path + failure.path)


def _validate_list(value: Any, shape: Shape) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ShapeError("is not a list")
    valid: list[Any] = []
    try:
        for item in value:
            valid.append(_validate(item, shape))
    except ValueError as error:
        raise _nest_error(error, f"[{len(valid)}]", len(valid)) from None
    return valid


def _validate_object(value: Any, shape: dict[Any, Shape]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ShapeError("is not an object")
    for name_shape in (str, text):
        if name_shape in shape:
            return {_validate(name, name_shape): _validate_field(value, name, shape[name_shape]) for name in value}
    fields = dict(value)
    for name, field_shape in shape.items():
        is_optional = isinstance(field_shape, OptionalField)
        if name in value:
            fields[name] = _validate_field(value, name, field_shape.shape if is_optional else field_shape)
        elif not is_optional:
            raise ShapeError(f"has no {name}", missing=name)
        elif field_shape.value is not ABSENT:
            fields[name] = copy.copy(field_shape.value)
    return fields


def _validate_field(value: dict[str, Any], name: str, shape: Shape) -> Any:
    try:
        return _validate(value[name], shape)
    except ValueError as error:
        raise _nest_error(error, f".{name}", name) from None


def _validate_any(value: Any, shapes: tuple[Shape, ...]) -> Any:
    for shape in shapes[:-1]:
        try:
            return _validate(value, shape)
        except ValueError:
            continue
    return _validate(value, shapes[-1])


def _validate_type(value: Any, kind: type[Any] | None) -> Any:
    if kind is object:
        return value
    if kind is None:
        if value is None:
            return None
        raise ShapeError("is not null")
    types = (int, float) if kind is float else kind
    if isinstance(value, types) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ShapeError(f"is not {TYPE_NAMES[kind]}")


def check_engine_options(value: Any) -> dict[str, Any] | None:
    """Return {"like": VERSION, "differ": {NAME: SHAPE or null}}, the options of an engine's image, or None.

    Raises ValueError for anything else.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"like", "differ"} or not isinstance(value["differ"], dict):
        raise ValueError("must be {like: VERSION, differ: {NAME: SHAPE}}.")
    if not isinstance(value["like"], str) or not _VERSION_PATTERN.fullmatch(value["like"]):
        raise ValueError("`like` must be a version.")
    options = value["differ"].items()
    if len(options) > MAX_OPTIONS or not all(_is_option(name, shape) for name, shape in options):
        raise ValueError("`differ` has an invalid option.")
    return value


def _is_option(name: Any, shape: Any) -> bool:
    if not isinstance(name, str) or not _OPTION_NAME_PATTERN.fullmatch(name):
        return False
    return shape is None or (
        isinstance(shape, str) and len(shape) <= MAX_SHAPE_CHARS and bool(_OPTION_SHAPE_PATTERN.fullmatch(shape))
    )

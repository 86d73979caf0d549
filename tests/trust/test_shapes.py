"""Values are validated against shapes; a mismatch is reported with its path."""

import re
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.trust.shapes import (
    OptionalField,
    Partial,
    Shape,
    integer,
    line,
    moment,
    number,
    number_between,
    optional,
    row,
    select_valid,
    text,
    validate,
    validate_or_fail,
    writable,
)

ROW: dict[str, Shape] = {"name": line, "size": float, "more": OptionalField([str], [])}


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (str, "a"), (bool, True), (int, 3), (float, 3), (float, 0.5), (object, {"a": [None]}), (None, None),
        ((None, int), None), ((None, int), 2), ([int], [1, 2]), ({str: int}, {"a": 1}), (frozenset(("a",)), "a"),
        (re.compile("a+"), "aa"), (number_between(0, 1), 0.5), (moment, 1.7e9), (text, "a\n"),
        (number, -2.5), (integer, 3), ({text: [number]}, {"a": [1]}), (row(int, text), [1, "a"]), (writable, {"a": [None]}),
        ({"a": optional(int)}, {"a": None}), ({"a": optional(int)}, {}), (ROW, {"name": "a", "size": 1, "more": ["b"], "x": 1}),
    ],
)  # fmt: skip
def test_valid_value_is_unchanged(shape: Shape, value: Any) -> None:
    assert validate(value, shape, "it") == value


@pytest.mark.parametrize(
    ("shape", "value", "message"),
    [
        (str, 1, "it is not text"), (bool, 1, "it is not true or false"), (int, True, "it is not a whole number"),
        (int, 0.5, "whole number"), (float, "1", "it is not a number"), (float, True, "it is not a number"),
        ((None, int), "a", "it is not a whole number"), ([int], "a", "it is not a list"), ([int], [1, "a"], "whole number"),
        ({str: int}, {"a": "b"}, "it.a is not a whole number"), ({str: int}, [], "it is not an object"),
        (frozenset(("a", "b")), "c", "it is none of a, b"), (frozenset(("a",)), ["a"], "it is none of a"),
        (re.compile("a+"), "aab", "it is not valid"), (re.compile("a"), 1, "it is not valid"),
        (number_between(0, 1), True, "it is not a number from 0 to 1"), (number_between(0, 1), float("nan"), "from 0 to 1"),
        (moment, 1e12, "it is not a number from 0"), (line, 1, "it is not text"),
        (text, "\ud800", "it is not text"), (number, float("inf"), "it is not a number"), (integer, 1.0, "whole number"),
        (integer, True, "is not a number"), ({text: int}, {"\ud800": 1}, "it is not text"),
        (row(int, text), [1], "it is not a list of 2"), (row(int), ["a"], "it is not a whole number"),
        (writable, float("nan"), "it can't be written"), ({"a": optional(int)}, {"a": "b"}, "it.a is not a whole number"),
        (ROW, {"name": "a"}, "it has no size"), (ROW, {"name": "a", "size": 1, "more": [2]}, "it.more[0] is not text"),
    ],
)  # fmt: skip
def test_invalid_value_is_refused(shape: Shape, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        validate(value, shape, "it")


def test_default_of_a_missing_field_is_not_shared() -> None:
    first, second = (validate({"name": "a", "size": 1}, ROW, "it") for _ in range(2))
    first["more"].append("x")
    assert second["more"] == []


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"rows": []}, ": config is missing or of the wrong type."),
        ({"config": {}, "rows": [{"a": 1}, {"a": "b"}]}, ": rows[1].a is missing or of the wrong type."),
        ({"config": {"x": {}}, "rows": []}, ": config.x is missing or of the wrong type."),
        ([], "."),
    ],
)
def test_invalid_answer_is_refused_with_the_path_of_the_error(value: Any, part: str) -> None:
    shape = {"config": {str: str}, "rows": [{"a": int}]}
    with pytest.raises(Failed, match=rf"^the answer is not valid{re.escape(part)}$"):
        validate_or_fail(value, shape, "the answer")


def test_partial_object_drops_invalid_fields() -> None:
    inner = Partial({"size": number}, strict=True)
    shape = Partial({"name": text, "rows": [int], "inner": inner, "loose": Partial({"a": int})}, ("name",))
    value = {"name": "a", "rows": [1, "b"], "inner": {"size": 1, "more": 2}, "loose": {"a": "b", "c": 1}, "later": 5}
    assert shape.valid_part(value) == {"name": "a", "loose": {"c": 1}, "later": 5}
    assert shape.valid_part({"name": 1}) is None, "a required field is invalid"
    assert shape.valid_part(["name"]) is None
    assert select_valid(shape, [{"name": "a"}, {}, 1]) == [{"name": "a"}]
    assert select_valid(shape, "none") == []

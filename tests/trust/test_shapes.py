"""A value that is not of its shape is refused, with the place; one that is, is whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparkwright.trust.shapes import Shape, Usual, fitted, line, moment, within

ROW: dict[str, Shape] = {"name": line, "size": float, "more": Usual([str], [])}


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (str, "a"), (bool, True), (int, 3), (float, 3), (float, 0.5), (object, {"a": [None]}), (None, None),
        ((None, int), None), ((None, int), 2), ([int], [1, 2]), ({str: int}, {"a": 1}), (frozenset(("a",)), "a"),
        (re.compile("a+"), "aa"), (within(0, 1), 0.5), (moment, 1.7e9), (ROW, {"name": "a", "size": 1, "more": ["b"], "x": 1}),
    ],
)  # fmt: skip
def test_what_fits_is_as_it_was(shape: Shape, value: Any) -> None:
    assert fitted(value, shape, "it") == value


@pytest.mark.parametrize(
    ("shape", "value", "why"),
    [
        (str, 1, "it is not text"), (bool, 1, "it is not true or false"), (int, True, "it is not a whole number"),
        (int, 0.5, "whole number"), (float, "1", "it is not a number"), (float, True, "it is not a number"),
        ((None, int), "a", "it is not a whole number"), ([int], "a", "it is not a list"), ([int], [1, "a"], "whole number"),
        ({str: int}, {"a": "b"}, "it.a is not a whole number"), ({str: int}, [], "it is not an object"),
        (frozenset(("a", "b")), "c", "it is none of a, b"), (frozenset(("a",)), ["a"], "it is none of a"),
        (re.compile("a+"), "aab", "it is not valid"), (re.compile("a"), 1, "it is not valid"),
        (within(0, 1), True, "it is not a number from 0 to 1"), (within(0, 1), float("nan"), "from 0 to 1"),
        (moment, 1e12, "it is not a number from 0"), (line, 1, "it is not text"),
        (ROW, {"name": "a"}, "it has no size"), (ROW, {"name": "a", "size": 1, "more": [2]}, "it.more is not text"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_where(shape: Shape, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        fitted(value, shape, "it")


def test_what_is_missing_is_the_usual_and_nobody_elses() -> None:
    first, second = (fitted({"name": "a", "size": 1}, ROW, "it") for _ in range(2))
    first["more"].append("x")
    assert second["more"] == []

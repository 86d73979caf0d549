"""JSON from outside is read up to a limit, and all of it is safe to show."""

import math

import pytest

from sparkwright.trust.bounds import MAX_NUMBER, LimitExceeded, parse_bounded_json, parse_json, sanitize


@pytest.mark.parametrize(
    ("raw", "limits", "why"),
    [
        (b"[" * 100_000, {}, "nested"),
        (b"[[[1]]]", {"max_depth": 1}, "nested deeper than 1 levels"),
        (b"[1,2,3]", {"max_values": 2}, "too many values"),
        ("[1,2,3]", {"max_values": 2}, "too many values"),
        (b"[1]", {"max_bytes": 2}, "has more than"),
    ],
)
def test_what_is_too_much_is_refused(raw: bytes | str, limits: dict[str, int], why: str) -> None:
    with pytest.raises(LimitExceeded, match=why):
        parse_json(raw, **limits)  # type: ignore[arg-type]


def test_what_is_within_bounds_is_read() -> None:
    assert parse_json(b"[[1, 2]]", max_depth=2, max_values=3, max_bytes=8) == [[1, 2]]


def test_what_is_no_json_is_a_value_error_however_deep() -> None:
    for raw in (b"[" * 100_000, b"", b"\xff", "{"):
        with pytest.raises(ValueError, match=r"."):
            parse_bounded_json(raw)


def test_what_is_shown_holds_no_control_character_and_no_number_that_breaks_a_sum() -> None:
    value = {"\x1b[2J": ["a\x07", True, None, 1.5, math.nan, math.inf, MAX_NUMBER * 2, MAX_NUMBER]}
    assert sanitize(value) == {r"\x1b[2J": [r"a\x07", True, None, 1.5, None, None, None, MAX_NUMBER]}
    with pytest.raises(LimitExceeded, match="nested too deep"):
        sanitize([[[]]], max_depth=2)

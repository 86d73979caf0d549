"""JSON from untrusted sources is limited and sanitized."""

import math

import pytest

from sparkwright.trust.bounds import MAX_NUMBER, LimitExceeded, parse_bounded_json, parse_json, sanitize


@pytest.mark.parametrize(
    ("raw", "limits", "message"),
    [
        (b"[" * 100_000, {}, "nested"),
        (b"[[[1]]]", {"max_depth": 1}, "nested deeper than 1 levels"),
        (b"[1,2,3]", {"max_values": 2}, "too many values"),
        ("[1,2,3]", {"max_values": 2}, "too many values"),
        (b"[1]", {"max_bytes": 2}, "has more than"),
    ],
)
def test_json_above_a_limit_is_refused(raw: bytes | str, limits: dict[str, int], message: str) -> None:
    with pytest.raises(LimitExceeded, match=message):
        parse_json(raw, **limits)


def test_json_within_the_limits_is_parsed() -> None:
    assert parse_json(b"[[1, 2]]", max_depth=2, max_values=3, max_bytes=8) == [[1, 2]]


def test_invalid_json_is_a_value_error() -> None:
    for raw in (b"[" * 100_000, b"", b"\xff", "{"):
        with pytest.raises(ValueError, match=r"."):
            parse_bounded_json(raw)


def test_control_characters_and_extreme_numbers_are_sanitized() -> None:
    value = {"\x1b[2J": ["a\x07", True, None, 1.5, math.nan, math.inf, MAX_NUMBER * 2, MAX_NUMBER]}
    assert sanitize(value) == {r"\x1b[2J": [r"a\x07", True, None, 1.5, None, None, None, MAX_NUMBER]}
    with pytest.raises(LimitExceeded, match="nested too deeply"):
        sanitize([[[]]], max_depth=2)

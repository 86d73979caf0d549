"""JSON from outside is read up to a limit, and all of it is safe to show."""

import math

import pytest

from sparkwright.trust.bounds import LARGEST, TooMuch, clean, json_of, parsed


@pytest.mark.parametrize(
    ("raw", "limits", "why"),
    [
        (b"[" * 100_000, {}, "nested"),
        (b"[[[1]]]", {"depth": 1}, "nested deeper than 1 levels"),
        (b"[1,2,3]", {"most_parts": 2}, "too many parts"),
        ("[1,2,3]", {"most_parts": 2}, "too many parts"),
        (b"[1]", {"most_bytes": 2}, "has more than"),
    ],
)
def test_what_is_too_much_is_refused(raw: bytes | str, limits: dict[str, int], why: str) -> None:
    with pytest.raises(TooMuch, match=why):
        json_of(raw, **limits)  # type: ignore[arg-type]


def test_what_is_within_bounds_is_read() -> None:
    assert json_of(b"[[1, 2]]", depth=2, most_parts=3, most_bytes=8) == [[1, 2]]


def test_what_is_no_json_is_a_value_error_however_deep() -> None:
    for raw in (b"[" * 100_000, b"", b"\xff", "{"):
        with pytest.raises(ValueError, match=r"."):
            parsed(raw)


def test_what_is_shown_holds_no_control_character_and_no_number_that_breaks_a_sum() -> None:
    given = {"\x1b[2J": ["a\x07", True, None, 1.5, math.nan, math.inf, LARGEST * 2, LARGEST]}
    assert clean(given) == {r"\x1b[2J": [r"a\x07", True, None, 1.5, None, None, None, LARGEST]}
    with pytest.raises(TooMuch, match="nested too deep"):
        clean([[[]]], depth=2)

"""Amounts as text, and durations that a user writes."""

import pytest

from sparkwright import units
from sparkwright.errors import Refused


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (9.04e9, "9.0 GB"), (1.2e12, "1.2 TB")]
)
def test_format_size_uses_decimal_units(size_bytes: float, text: str) -> None:
    assert units.format_size(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.42, "0.4s"), (12.4, "12s"), (185, "3m05s"), (3725, "1h02m")])
def test_format_duration(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0.4, "0 s"), (119, "119 s"), (300, "5 min"), (9000, "2 h"), (2e5, "2 days")]
)
def test_format_rough_duration_has_one_unit(seconds: float, text: str) -> None:
    assert units.format_rough_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("12h", 43200), (" 7d ", 604800), ("2w", 1209600)]
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert units.parse_duration(text, "--every") == seconds


@pytest.mark.parametrize("text", ["", "x", "5 m", "5ms", "-5m", "nan", "inf", "1e3", "5M"])
def test_invalid_duration_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(Refused, match=r"^--every: invalid duration '"):
        units.parse_duration(text, "--every")


@pytest.mark.parametrize("text", ["29s", "0"])
def test_duration_below_the_minimum_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=f"--every {text} is too short.*At least 30s"):
        units.parse_duration(text, "--every", min_s=30)


@pytest.mark.parametrize("text", ["521w", "9" * 400])
def test_duration_of_more_than_ten_years_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=f"--since {text} is too long.*At most 520w"):
        units.parse_duration(text, "--since", min_s=60)

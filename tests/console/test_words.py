"""Figures as a person reads them."""

from __future__ import annotations

import pytest

from sparkwright.console import words


@pytest.mark.parametrize(
    ("size_bytes", "said"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (9.04e9, "9.0 GB"), (1.2e12, "1.2 TB")]
)
def test_sizes_are_decimal(size_bytes: float, said: str) -> None:
    assert words.size(size_bytes) == said


@pytest.mark.parametrize(("seconds", "said"), [(0.42, "0.4s"), (12.4, "12s"), (185, "3m05s"), (3725, "1h02m")])
def test_durations_are_short(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


def test_an_amount_says_its_unit_once() -> None:
    assert words.amount(64, 128, "tokens") == "64 of 128 tokens"
    assert words.amount(1.2e9, 9e9, "bytes") == "1.2 GB of 9.0 GB"
    assert words.amount(3, 0, "bytes") == "3 B"


def test_a_digest_keeps_its_first_twelve_characters_and_a_long_text_its_first_line() -> None:
    assert words.short("repo@sha256:" + "ab" * 32) == "repo@sha256:abababababab…"
    assert words.short("a\nb") == "a⏎b"
    assert len(words.short("x" * 500)) == 88

"""Figures and names as text for a person."""

from sparkwright.console import formatters


def test_unit_of_an_amount_is_printed_once() -> None:
    assert formatters.format_progress(64, 128, "tokens") == "64 of 128 tokens"
    assert formatters.format_progress(1.2e9, 9e9, "bytes") == "1.2 GB of 9.0 GB"
    assert formatters.format_progress(3, 0, "bytes") == "3 B"


def test_digests_and_long_texts_are_shortened() -> None:
    assert formatters.truncate_value("repo@sha256:" + "ab" * 32) == "repo@sha256:abababababab…"
    assert formatters.truncate_value("a\nb") == "a⏎b"
    assert len(formatters.truncate_value("x" * 500)) == 88

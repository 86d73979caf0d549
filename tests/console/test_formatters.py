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


def test_run_whose_plan_is_not_readable_is_described_as_such() -> None:
    row = {"run": "r1", "state": "cut off", "play": None, "who": None}
    assert formatters.format_run(row) == "r1  cut off  its plan is not readable"
    assert (
        formatters.format_run({**row, "play": "Deploy", "who": "a@b", "check": True})
        == "r1  cut off  Deploy (check)  a@b"
    )

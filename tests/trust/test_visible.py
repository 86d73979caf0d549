"""Nothing that a stranger writes reaches a terminal as a command."""

from __future__ import annotations

import pytest

from sparkwright.trust.visible import one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 模型 💡", "plain, ünïcode 模型 💡"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("50 %\r100 %", "50 %\\x0d100 %"),
        ("a\tb\nc", "a\tb\nc"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_control_character_is_shown_and_not_sent(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_one_line_stays_one_line() -> None:
    assert one_line("a\nb\tc") == "a\\nb\\tc"


def test_what_is_cut_is_counted() -> None:
    assert visible("a" * 100, at_most=10) == "a" * 10 + "... (90 more characters)"

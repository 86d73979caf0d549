"""Control and invisible characters in untrusted text are escaped."""

import json

import pytest

from sparkwright.visible import escape_invisible, escape_json, one_line


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
        ("py\xadtorch\u3164", "py\\xadtorch\\u3164"),
        ("yes\U000e0069\U000e0066", "yes\\U000e0069\\U000e0066"),
    ],
)
def test_control_and_invisible_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown


def test_one_line_escapes_newlines_and_tabs() -> None:
    assert one_line("a\nb\tc") == "a\\nb\\tc"


@pytest.mark.parametrize("text", ["a\u202eb", "\U000e0069", "\x7f", "\xad"])
def test_json_with_escaped_characters_has_the_same_value(text: str) -> None:
    shown = escape_json(json.dumps(text, ensure_ascii=False))
    assert shown == escape_invisible(shown)
    assert json.loads(shown) == text


def test_number_of_omitted_characters_is_shown() -> None:
    assert escape_invisible("a" * 100, max_chars=10) == "a" * 10 + "... (90 more characters)"

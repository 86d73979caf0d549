"""Escape untrusted text, so that printing it can't move the cursor, set a title or write to the clipboard."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

#: C0 without tab and newline, DEL, C1, bidirectional controls (Trojan Source, CVE-2021-42574), and zero-width characters,
#: including the tags block (U+E0000), whose text is invisible to people but not to language models
_INVISIBLE_PATTERN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def escape_invisible(text: str, *, max_chars: int = 0) -> str:
    r"""Return the text with each invisible character as an escape (`\x1b`, `\u202e`); tab and newline are unchanged.

    max_chars: length at which the text is cut, with a note of how many characters are missing; 0 for no limit.
    """
    if max_chars and len(text) > max_chars:
        text = f"{text[:max_chars]}... ({len(text) - max_chars} more characters)"
    return _INVISIBLE_PATTERN.sub(_escape_match, text)


def one_line(text: str, *, max_chars: int = 0) -> str:
    r"""Return the text like `escape_invisible`, with newlines and tabs escaped too."""
    return escape_invisible(text, max_chars=max_chars).replace("\n", "\\n").replace("\t", "\\t")


def quote_text(text: str) -> str:
    """Return a string in quotes, on one line and at most 40 characters long, for a message."""
    return f"'{one_line(text, max_chars=40)}'"


def display_name(text: str) -> str:
    """Return a string on one line and at most 80 characters long, for a message that adds its own quotes."""
    return one_line(text, max_chars=80)


def escape_json(text: str) -> str:
    """Return an equivalent JSON text in which invisible characters are JSON escapes."""
    return _INVISIBLE_PATTERN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def escape_csv_cell(text: str) -> str:
    """Return the text of a CSV cell, prefixed with an apostrophe if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _escape_match(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def join_first(names: Sequence[str], max_names: int) -> str:
    """Return the first names, and the number of the others: a, b, c and 11 more."""
    suffix = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + suffix


def parse_list(text: str) -> list[str]:
    """Return the items of a comma-separated list: `a, b` is a and b."""
    return [word for word in map(str.strip, text.split(",")) if word]


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 file, 2 files."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

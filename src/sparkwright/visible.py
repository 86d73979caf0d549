"""Untrusted text, made safe to print: no byte of it can move the cursor, set a title or write the clipboard."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

#: C0 without tab and newline, DEL, C1, the marks that reorder a line (Trojan Source, CVE-2021-42574), and characters without
#: width: letters of the tags block (U+E0000) form a text that people don't see and language models read
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible(text: str, *, at_most: int = 0) -> str:
    r"""Return the text with each control character written as its escape (`\x1b`, `\u202e`); tab and newline are unchanged.

    at_most: characters that are kept, 0 for all; the text says how many were cut.
    """
    if at_most and len(text) > at_most:
        text = f"{text[:at_most]}... ({len(text) - at_most} more characters)"
    return _UNSEEN.sub(_escaped, text)


def one_line(text: str, *, at_most: int = 0) -> str:
    r"""Return the text like `visible`, with newlines and tabs written as escapes too."""
    return visible(text, at_most=at_most).replace("\n", "\\n").replace("\t", "\\t")


def quoted(text: str) -> str:
    """Return a user's text as a message quotes it."""
    return f"'{one_line(text, at_most=40)}'"


def name(text: str) -> str:
    """Return a user's text for a sentence that has its own quotes."""
    return one_line(text, at_most=80)


def in_json(text: str) -> str:
    """Return an equivalent JSON text, with each invisible character of its strings as JSON's own escape."""
    return _UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def in_cell(text: str) -> str:
    """Return text for a cell of a CSV file, quoted if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def first(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of the others: a, b, c and 11 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(text: str) -> list[str]:
    """Return the items of a comma-separated list: `a, b` is a and b."""
    return [word for word in map(str.strip, text.split(",")) if word]


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 file, 2 files."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

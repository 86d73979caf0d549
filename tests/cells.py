"""Cells of a table of expected command results: "CODE TEXT", an exit code and text of the screen.

` ... ` matches anything, ` | ` separates alternatives.
"""

import re


def matches_cell(cell: str, code: int, screen: str) -> bool:
    for alternative in cell.split(" | "):
        expected_code, _, expected_text = alternative.partition(" ")
        pattern = ".*".join(map(re.escape, expected_text.split(" ... ")))
        if int(expected_code) == code and re.search(pattern, join_whitespace(screen)):
            return True
    return False


def join_whitespace(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()

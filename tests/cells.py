"""Cells of a table that tells what commands say: "CODE words of the screen".

` ... ` stands for anything between, ` | ` between two cells that are both right.
"""

import re


def fits(cell: str, code: int, screen: str) -> bool:
    """Whether a command that ended so and printed this is what the cell says."""
    for way in cell.split(" | "):
        wanted, _, says = way.partition(" ")
        if int(wanted) == code and re.search(".*".join(map(re.escape, says.split(" ... "))), flat(screen)):
            return True
    return False


def flat(text: str) -> str:
    """A screen as one line."""
    return re.sub(r"\s+", " ", text).strip()

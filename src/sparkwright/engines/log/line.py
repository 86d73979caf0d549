"""A line of a log that is worth reading: the literal that it must hold, and the pattern of what it tells."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A line by its needle and its pattern. Few patterns are ever needed, so each is compiled when its needle is met.

    needle: a literal that each line the pattern matches must hold. Few lines hold one, so a log is read at the speed of a
    search for them. Needles begin with a capital or a rare sign where they can, which makes that search fast.
    """

    needle: str
    pattern: str

    def match(self, line: str) -> re.Match[str] | None:
        """Return the match of the pattern in a line, or None."""
        return re.search(self.pattern, line) if self.needle in line else None


def line(needle: str, pattern: str = "") -> Line:
    """A row; without a pattern the needle is all of it."""
    return Line(needle, pattern or re.escape(needle))

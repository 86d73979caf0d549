"""A line of a log that is worth reading: the literal that it must hold, and the pattern of its content."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of log line, by its needle and its pattern.

    Few lines hold a needle, so a log is read at the speed of a search for literals, and a pattern is compiled only once its
    needle is found. Needles begin with a capital or a rare character where possible, which makes that search fast.
    """

    #: a literal in each line that the pattern matches
    needle: str
    pattern: str

    def match(self, line: str) -> re.Match[str] | None:
        """Return the match of the pattern in a line, or None."""
        return re.search(self.pattern, line) if self.needle in line else None


def line(needle: str, pattern: str = "") -> Line:
    """Return a kind of line; without a pattern the needle is the pattern."""
    return Line(needle, pattern or re.escape(needle))

"""Search for the few lines of a log that are worth parsing, at the speed of a search for literals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


class Needles:
    """Literals of which a line must hold one, and noise of which it must hold none.

    Needles that begin with a capital are found in one pass over a line, for few places of a log line can begin one. The others
    would be tried at nearly every place, so each is searched for in a whole block first.

    windows: words, each with the number of following lines that are worth parsing, whatever they hold.
    """

    def __init__(self, needles: Iterable[str], noise: Sequence[str], windows: Sequence[tuple[str, int]] = ()) -> None:
        words = sorted({*needles, *(word for word, _ in windows)})
        self._windows = [(word.encode(), lines) for word, lines in windows]
        self._noise = (noise[0].encode(), noise[1].encode(), noise[2].encode())
        self._capital = _one_of(word for word in words if word[0].isupper())
        self._common = [word.encode() for word in words if not word[0].isupper()]

    def is_noise(self, line: bytes) -> bool:
        """Return True if a line holds no information, whatever else is in it."""
        first, second, third = self._noise  # without a loop: called a million times
        return first in line or second in line or third in line

    def in_line(self, line: bytes) -> bool:
        """Return True if a line may be worth parsing."""
        return bool(self._capital.search(line)) or any(word in line for word in self._common)

    def window(self, line: bytes) -> int:
        """Return the number of lines after this one that are worth parsing."""
        return max((lines for word, lines in self._windows if word in line), default=0)

    def in_block(self, block: bytes, line_bytes: int) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Return the lines of a block that may be worth parsing, numbered from 0, and all its lines without the noise.

        line_bytes: lines are cut off after this length.
        """
        first, second, third = self._noise
        lines = list(filter(None, block.split(b"\n")))
        if first in block or second in block or third in block:
            lines = [
                line
                for line in lines
                if not (first in line or second in line or third in line) or len(line) > line_bytes
            ]
        text = b"\n".join(lines)
        common = [word for word in self._common if word in text]
        search = self._capital.search
        found = [
            (at, line[:line_bytes])
            for at, line in enumerate(lines)
            if search(line) or (common and any(word in line for word in common))
        ]
        return found, lines

    def opens_window(self, block: bytes) -> bool:
        """Return True if lines after one in this block may be worth parsing."""
        return any(word in block for word, _ in self._windows)


def _one_of(words: Iterable[str]) -> re.Pattern[bytes]:
    """Return one pattern for many words, grouped by their first character, which rules out most places at once."""
    groups: dict[str, set[str]] = {}
    for word in words:
        groups.setdefault(word[0], set()).add(word[1:])
    one_of = {first: "|".join(map(re.escape, sorted(ends))) for first, ends in groups.items()}
    grouped = (f"{re.escape(first)}(?:{ends})" for first, ends in one_of.items())
    return re.compile("|".join(grouped).encode())

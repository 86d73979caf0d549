"""Why an engine did not start or failed, from its last words and its engine's table of failures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines.log.line import Line, line

#: how far apart, in lines, last words and what explains them stand
WINDOW = 600
SENTENCE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Death:
    """What a line holds, and the sentence for it, which the groups of the pattern fill in.

    ends: "start" when a start ends with it (a server that is ready only reports it), "always", or "never" when it only
    explains what another row proves.
    """

    line: Line
    sentence: str
    ends: Literal["start", "always", "never"] = "start"


@dataclass(frozen=True, slots=True)
class Words:
    """Last words that were found: at which line, the sentence, the line."""

    at: int
    sentence: str
    line: str


def death(needle: str, pattern: str, sentence: str, ends: Literal["start", "always", "never"] = "start") -> Death:
    """A row of a table of failures; without a pattern the needle is all of it."""
    return Death(line(needle, pattern), sentence, ends)


class LastWords:
    """Keeps, of each row, the words that may explain the end. At most one a row, so memory is bounded.

    failures: more special ones first: of all that a log holds, the first row wins. harmless: lines that are never last words,
    whatever they quote.
    """

    def __init__(self, failures: Sequence[Death], harmless: re.Pattern[str]) -> None:
        self._failures, self._harmless = failures, harmless
        self._found: dict[int, Words] = {}
        self._end: int | None = None

    def feed(self, text: str, at: int, *, ready: bool) -> None:
        """Take in a line. at: its number. ready: whether the server was ready by then."""
        if self._harmless.search(text):
            return
        for rank, row in enumerate(self._failures):
            found = row.line.match(text)
            if found is None:
                continue
            ends = row.ends == "always" or (row.ends == "start" and not ready)
            before = self._found.get(rank)
            stale = before is not None and self._end is None and at - before.at > WINDOW
            if before is None or stale:
                answer = row.sentence.format(*(group or "" for group in found.groups()))
                self._found[rank] = Words(at, answer[:SENTENCE_CHARS], text)
            if ends and self._end is None:
                self._end = at
            return

    def forget(self) -> None:
        """The start went on: what was said so far was not the end of it."""
        self._found.clear()
        self._end = None

    def verdict(self) -> Words | None:
        """The most special words near the end; None when nothing proves an end."""
        if self._end is None:
            return None
        near = [rank for rank, words in self._found.items() if abs(words.at - self._end) <= WINDOW]
        return self._found[min(near)] if near else None

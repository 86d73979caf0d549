"""The reason why an engine did not start or failed, from its last words and its engine's table of failures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines.log.exceptions import Exceptions, Raised
from sparkwright.engines.log.text import Line, line

#: greatest distance between last words and their cause, in lines
WINDOW = 600
#: lines after the last exception of a log that has no other end
SILENCE = 2
SENTENCE_CHARS = 300

Ends = Literal["start", "always", "never"]
Kind = Literal["cause", "while serving", "consequence"]


@dataclass(frozen=True, slots=True)
class Death:
    """A row of the table of failures."""

    line: Line
    sentence: str  # the groups of the line's pattern fill it in
    #: "start": a start ends with it, and a server that is ready only reports it; "never": it only explains another row's end
    ends: Ends = "start"
    #: "while serving" quotes the exception behind its sentence; a "consequence" counts only if no exception is known
    kind: Kind = "cause"
    alone: str = ""  # another sentence for a server without other members; "" for the same


@dataclass(frozen=True, slots=True)
class Words:
    """Last words found in a log."""

    at: int  # the number of the line
    sentence: str
    line: str
    unexplained: bool = False  # an exception while serving, without a cause in any table
    alone: str = ""  # see Death.alone


def death(
    needle: str, pattern: str, sentence: str, ends: Ends = "start", kind: Kind = "cause", alone: str = ""
) -> Death:
    """Return a row of the table of failures; without a pattern the needle is the pattern."""
    return Death(line(needle, pattern), sentence, ends, kind, alone)


class LastWords:
    """A collector of last words that may explain an end: at most one per row, and a bounded number of exceptions.

    Args:
        failures: specific rows first: of all causes in a log, the first row wins. Exceptions come after the causes, and before
            rows of the other kinds.
        harmless: lines that are never last words, whatever they quote.
        exceptions: reader of Python exceptions; None if the engine is not a Python program.
        consequences: exceptions that only follow from another process's end.
        front: the process that answers requests: an exception of another process explains more.
    """

    def __init__(
        self,
        failures: Sequence[Death],
        harmless: re.Pattern[str],
        exceptions: Exceptions | None = None,
        consequences: re.Pattern[str] | None = None,
        front: str = "",
    ) -> None:
        self._failures, self._harmless = failures, harmless
        self._exceptions, self._consequences, self._front = exceptions, consequences, front
        self._found: dict[int, Words] = {}
        self._end: int | None = None
        self._ready = False

    def feed(self, text: str, at: int, *, ready: bool) -> None:
        """Read a line.

        Args:
            text: the line.
            at: its number.
            ready: the server was ready by then.
        """
        self._ready = ready
        if self._harmless.search(text):
            return
        raised = self._exceptions.feed(text, at) if self._exceptions else None
        if self._exceptions and self._exceptions.inside:
            return  # the code in a frame only quotes such words
        for rank, row in enumerate(self._failures):
            found = row.line.match(text)
            if found is not None:
                groups = [group or "" for group in found.groups()]
                self._keep(rank, Words(at, _filled(row.sentence, groups), text, alone=_filled(row.alone, groups)))
                self._ends(at, row.ends == "always" or (row.ends == "start" and not ready))
                return
        # an exception printed by a process ends it; a logged one only explains
        self._ends(at, raised is not None and not raised.logged and not ready and not self._follows(raised))

    def forget(self) -> None:
        """Drop all last words: the start went on after them."""
        self._found.clear()
        self._end = None
        if self._exceptions:
            self._exceptions.forget()

    def verdict(self, lines: int) -> Words | None:
        """Return the most specific words near the end; None if nothing proves an end.

        Args:
            lines: the number of lines in the log so far.
        """
        end = self._end if self._end is not None else self._silent_end(lines)
        if end is None:
            return None
        near = sorted(rank for rank, words in self._found.items() if abs(words.at - end) <= WINDOW)
        cause = next((rank for rank in near if self._failures[rank].kind == "cause"), None)
        if cause is not None:
            return self._found[cause]
        raised = self._root(end)
        serving = next((rank for rank in near if self._failures[rank].kind == "while serving"), None)
        if raised is not None and serving is not None:
            sentence = f"{self._found[serving].sentence.rstrip('.')}: {raised.sentence}"
            return Words(raised.at, _shortened(sentence), raised.line, unexplained=True)
        if raised is not None:
            return Words(raised.at, _shortened(raised.sentence), raised.line)
        return self._found[near[0]] if near else None

    def _silent_end(self, lines: int) -> int | None:
        """Return the line of a start's last exception, if an inner process logged its traceback and nothing follows.

        A worker's log, or a log that was cut off, may lack the line that says that the engine ended.
        """
        last = self._exceptions.last if self._exceptions else None
        if last is None or self._ready or not (last.traced and last.logged) or not last.process:
            return None
        inner = not self._front or self._front not in last.process
        silent = lines - last.at - len(last.detail) <= SILENCE
        return last.at if inner and silent and not self._follows(last) else None

    def _root(self, end: int) -> Raised | None:
        """Return the exception that the others follow from: the first one, preferably of an inner process."""
        if self._exceptions is None:
            return None
        causes = [raised for raised in self._exceptions.near(end, WINDOW) if not self._follows(raised)]
        inner = [raised for raised in causes if not self._front or self._front not in raised.process]
        return next(iter(inner or causes), None)

    def _follows(self, raised: Raised) -> bool:
        return bool(self._consequences and self._consequences.search(raised.sentence))

    def _keep(self, rank: int, words: Words) -> None:
        before = self._found.get(rank)
        stale = before is not None and self._end is None and words.at - before.at > WINDOW
        if before is None or stale:
            self._found[rank] = words

    def _ends(self, at: int, ends: bool) -> None:
        if ends and self._end is None:
            self._end = at


def _filled(sentence: str, groups: Sequence[str]) -> str:
    return _shortened(sentence.format(*groups))


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= SENTENCE_CHARS else f"{sentence[: SENTENCE_CHARS - 4]} ..."

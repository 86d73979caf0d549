"""The reason why an engine did not start or failed, from the Python exceptions and the last words in its log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparkwright.engines.log.text import Line, line

#: the line that begins a traceback, anywhere in a message
TRACEBACK = "Traceback (most recent call last)"
#: lines after such a line that may belong to it
WINDOWS: tuple[tuple[str, int], ...] = ((TRACEBACK, 200), (" ERROR ", 12), ("Error: ", 12), ("Exception: ", 12))

#: lines kept below an exception, and how many exceptions and processes are kept at most
DETAIL_LINES, EXCEPTIONS, PROCESSES = 8, 64, 32
DETAIL_CHARS = 200
#: "(EngineCore pid=16) " of vLLM, the innermost of several; SGLang's rank is in the prefix that the LogBook strips
PROCESS = re.compile(r"^(?:\(([^()]{1,80})\) ?){1,4}")
LEVEL = re.compile(r"\b(?:ERROR|CRITICAL) \d\d-\d\d ")
#: after a traceback any name is an exception's; elsewhere only a name that ends so, or that has a module and a message
ANY_NAME = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}([A-Za-z_]\w{0,199})(?:: ?(.*))?$")
CALLED_SO = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}(\w{0,200}(?:Error|Exception)): (.+)$")
WITH_MODULE = re.compile(r"^(?:[a-z_]\w{0,99}\.){1,20}([A-Z]\w{0,199}): (.+)$")
#: code in a frame whose traceback lost its beginning
QUOTED = re.compile(r"^ +raise \w")
#: between two tracebacks of a chain, the older first
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
#: lines below an exception that explain nothing
POINTLESS = re.compile(
    r"^(?:For further information visit|The above exception|Repro command|\^+$|~*\^+~*$|[-=*]{5,}$|\{\}$"
    r"|CUDA kernel errors might be|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|Search for `cudaError"
    r"|Device-side assert(?:ion)?s? (?:tracking|can be))"
)
#: from such a line on, an exception gives advice instead of a reason
ADVICE = ("Possible solutions", "Possible fixes", "You can suppress this exception", "Open an issue on GitHub")


@dataclass
class Raised:
    """An exception in a log."""

    name: str  # without its modules
    text: str  # its first line, after the name
    at: int  # the number of its line in the log
    line: str
    process: str  # "EngineCore pid=16", "" if the log does not tell
    logged: bool  # by the engine's logger, instead of printed by a process that ends with it
    prefixed: bool  # the line has the log's prefix, and then so do the lines below it
    traced: bool  # after a traceback
    detail: list[str] = field(default_factory=list)  # the lines below it

    @property
    def sentence(self) -> str:
        """The class, its message, and the lines below it."""
        text = re.split("|".join(ADVICE), self.text, maxsplit=1)[0]
        words = " ".join([f"{self.name}: {text}" if text or self.detail else self.name, *self.detail])
        return f"{' '.join(words.split()).rstrip('.: ')}."


@dataclass
class _Process:
    """The position in one process's log: inside a traceback, or below an exception."""

    in_traceback: bool = False
    current: Raised | None = None


class Exceptions:
    """A collector of the exceptions of a log, oldest first. Memory is bounded, however many there are.

    Args:
        prefix: the source, time and place before a message, as the engine's log writes them.
    """

    def __init__(self, prefix: re.Pattern[str]) -> None:
        self._prefix = prefix
        self._processes: dict[str, _Process] = {}
        self._raised: list[Raised] = []
        #: the last line was a frame of a traceback, or the code in it
        self.inside = False

    def feed(self, line: str, at: int) -> Raised | None:
        """Read a line; return the exception that it begins, if any."""
        tag = PROCESS.match(line)
        name = tag[1] if tag else ""
        bare = self._prefix.sub("", line, count=1)
        # the prefix holds the tag where the logger wrote the line
        message = PROCESS.sub("", bare, count=1) if bare == line else bare
        process = self._process(name)
        self.inside = False
        if TRACEBACK in message:
            process.in_traceback, process.current = True, None
            return None
        if QUOTED.match(message) or (process.in_traceback and (not message.strip() or message[0] in " |+")):
            self.inside = True
            return None
        prefixed = bare != line
        logged, traced = bool(LEVEL.search(line)), process.in_traceback
        if _awaits_words(process.current) and not traced:
            _add_detail(process, message, prefixed)
            return None
        raised = self._exception(message, process, Raised("", "", at, line, name, logged, prefixed, traced))
        if raised is None:
            _add_detail(process, message, prefixed)
        process.in_traceback = False
        return raised

    def near(self, at: int, lines: int) -> Iterator[Raised]:
        """Yield the exceptions within a number of lines, oldest first."""
        return (raised for raised in self._raised if abs(raised.at - at) <= lines)

    @property
    def last(self) -> Raised | None:
        """The newest exception."""
        return self._raised[-1] if self._raised else None

    def forget(self) -> None:
        """Drop all exceptions: the start survived them."""
        self._processes.clear()
        self._raised.clear()

    def _process(self, name: str) -> _Process:
        if name not in self._processes and len(self._processes) >= PROCESSES:
            self._processes.clear()
        return self._processes.setdefault(name, _Process())

    def _exception(self, message: str, process: _Process, raised: Raised) -> Raised | None:
        patterns = (ANY_NAME,) if process.in_traceback else (CALLED_SO, WITH_MODULE)
        found = next((match for pattern in patterns if (match := pattern.match(message.strip()))), None)
        if found is None:
            return None
        raised.name, raised.text = found[1], (found[2] or "").strip()
        process.current = raised
        self._raised.append(raised)
        del self._raised[:-EXCEPTIONS]
        return raised


def _awaits_words(current: Raised | None) -> bool:
    """Return True if an exception's first line announces the next: "backend='inductor' raised:"."""
    return current is not None and current.text.endswith(":") and not current.detail


def _add_detail(process: _Process, message: str, prefixed: bool) -> None:
    """Append a line to the exception above it."""
    current, text = process.current, message.strip()
    if current is None or not text:
        return
    if prefixed != current.prefixed or text.startswith((*CHAINED, *ADVICE)) or len(current.detail) >= DETAIL_LINES:
        process.current = None
    elif not POINTLESS.match(text):
        current.detail.append(text[:DETAIL_CHARS])


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

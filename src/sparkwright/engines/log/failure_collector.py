"""Failures in an engine's log: the cause of a failed start or an end, from exceptions and known failure lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparkwright.engines.log.text import Line, line

#: the line that begins a traceback, anywhere in a message
TRACEBACK = "Traceback (most recent call last)"
#: lines after such a line that may belong to it
CONTINUATION_WINDOWS: tuple[tuple[str, int], ...] = (
    (TRACEBACK, 200),
    (" ERROR ", 12),
    ("Error: ", 12),
    ("Exception: ", 12),
)

#: lines kept below an exception, and how many exceptions and processes are kept at most
MAX_DETAIL_LINES, MAX_EXCEPTIONS, MAX_PROCESSES = 8, 64, 32
MAX_DETAIL_CHARS = 200
#: "(EngineCore pid=16) " of vLLM, the innermost of several; SGLang's rank is in the prefix that the LogFormat strips
PROCESS_TAG = re.compile(r"^(?:\(([^()]{1,80})\) ?){1,4}")
ERROR_LEVEL = re.compile(r"\b(?:ERROR|CRITICAL) \d\d-\d\d ")
#: after a traceback any name is an exception's; elsewhere only a name that ends so, or that has a module and a message
ANY_EXCEPTION_NAME = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}([A-Za-z_]\w{0,199})(?:: ?(.*))?$")
ERROR_NAME = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}(\w{0,200}(?:Error|Exception)): (.+)$")
QUALIFIED_NAME = re.compile(r"^(?:[a-z_]\w{0,99}\.){1,20}([A-Z]\w{0,199}): (.+)$")
#: code in a frame whose traceback lost its beginning
RAISE_STATEMENT = re.compile(r"^ +raise \w")
#: between two tracebacks of a chain, the older first
CHAIN_SEPARATORS = ("During handling of the above exception", "The above exception was the direct cause")
#: lines below an exception that explain nothing
UNINFORMATIVE_LINE = re.compile(
    r"^(?:For further information visit|The above exception|Repro command|\^+$|~*\^+~*$|[-=*]{5,}$|\{\}$"
    r"|CUDA kernel errors might be|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|Search for `cudaError"
    r"|Device-side assert(?:ion)?s? (?:tracking|can be))"
)
#: from such a line on, an exception gives advice instead of a reason
ADVICE_OPENINGS = ("Possible solutions", "Possible fixes", "You can suppress this exception", "Open an issue on GitHub")


@dataclass
class LoggedException:
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
        text = re.split("|".join(ADVICE_OPENINGS), self.text, maxsplit=1)[0]
        words = " ".join([f"{self.name}: {text}" if text or self.detail else self.name, *self.detail])
        return f"{' '.join(words.split()).rstrip('.: ')}."


@dataclass
class _ProcessPosition:
    """The position in one process's log: inside a traceback, or below an exception."""

    in_traceback: bool = False
    current: LoggedException | None = None


class ExceptionCollector:
    """A collector of the exceptions of a log, oldest first. Memory is bounded, however many there are.

    Args:
        prefix: the source, time and place before a message, as the engine's log writes them.
    """

    def __init__(self, prefix: re.Pattern[str]) -> None:
        self._prefix = prefix
        self._processes: dict[str, _ProcessPosition] = {}
        self._exceptions_seen: list[LoggedException] = []
        #: the last line was a frame of a traceback, or the code in it
        self.in_frame = False

    def feed(self, line: str, line_number: int) -> LoggedException | None:
        """Read a line; return the exception that it begins, if any."""
        tag = PROCESS_TAG.match(line)
        name = tag[1] if tag else ""
        bare = self._prefix.sub("", line, count=1)
        # the prefix holds the tag where the logger wrote the line
        message = PROCESS_TAG.sub("", bare, count=1) if bare == line else bare
        process = self._process(name)
        self.in_frame = False
        if TRACEBACK in message:
            process.in_traceback, process.current = True, None
            return None
        if RAISE_STATEMENT.match(message) or (process.in_traceback and (not message.strip() or message[0] in " |+")):
            self.in_frame = True
            return None
        prefixed = bare != line
        logged, traced = bool(ERROR_LEVEL.search(line)), process.in_traceback
        if _continues_on_next_line(process.current) and not traced:
            _add_detail(process, message, prefixed)
            return None
        raised = self._match_exception(
            message, process, LoggedException("", "", line_number, line, name, logged, prefixed, traced)
        )
        if raised is None:
            _add_detail(process, message, prefixed)
        process.in_traceback = False
        return raised

    def near(self, line_number: int, max_distance: int) -> Iterator[LoggedException]:
        """Yield the exceptions within a number of lines, oldest first."""
        return (raised for raised in self._exceptions_seen if abs(raised.at - line_number) <= max_distance)

    @property
    def last(self) -> LoggedException | None:
        """The newest exception."""
        return self._exceptions_seen[-1] if self._exceptions_seen else None

    def forget(self) -> None:
        """Drop all exceptions: the start survived them."""
        self._processes.clear()
        self._exceptions_seen.clear()

    def _process(self, name: str) -> _ProcessPosition:
        if name not in self._processes and len(self._processes) >= MAX_PROCESSES:
            self._processes.clear()
        return self._processes.setdefault(name, _ProcessPosition())

    def _match_exception(
        self, message: str, process: _ProcessPosition, raised: LoggedException
    ) -> LoggedException | None:
        patterns = (ANY_EXCEPTION_NAME,) if process.in_traceback else (ERROR_NAME, QUALIFIED_NAME)
        found = next((match for pattern in patterns if (match := pattern.match(message.strip()))), None)
        if found is None:
            return None
        raised.name, raised.text = found[1], (found[2] or "").strip()
        process.current = raised
        self._exceptions_seen.append(raised)
        del self._exceptions_seen[:-MAX_EXCEPTIONS]
        return raised


def _continues_on_next_line(current: LoggedException | None) -> bool:
    """Return True if an exception's first line announces the next: "backend='inductor' raised:"."""
    return current is not None and current.text.endswith(":") and not current.detail


def _add_detail(process: _ProcessPosition, message: str, prefixed: bool) -> None:
    """Append a line to the exception above it."""
    current, text = process.current, message.strip()
    if current is None or not text:
        return
    if (
        prefixed != current.prefixed
        or text.startswith((*CHAIN_SEPARATORS, *ADVICE_OPENINGS))
        or len(current.detail) >= MAX_DETAIL_LINES
    ):
        process.current = None
    elif not UNINFORMATIVE_LINE.match(text):
        current.detail.append(text[:MAX_DETAIL_CHARS])


#: greatest distance between a failure and its cause, in lines
MAX_DISTANCE_LINES = 600
#: lines after the last exception of a log that has no other end
MAX_TRAILING_LINES = 2
MAX_SENTENCE_CHARS = 300

EndsWhen = Literal["start", "always", "never"]
FailureKind = Literal["cause", "while serving", "consequence"]


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A log line that reports a failure, with the sentence that explains it."""

    line: Line
    sentence: str  # the groups of the line's pattern fill it in
    #: "start": a start ends with it, and a server that is ready only reports it; "never": it only explains another row's end
    ends: EndsWhen = "start"
    #: "while serving" quotes the exception behind its sentence; a "consequence" counts only if no exception is known
    kind: FailureKind = "cause"
    alone: str = ""  # another sentence for a server without other members; "" for the same


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A failure found in a log."""

    at: int  # the number of the line
    sentence: str
    line: str
    unexplained: bool = False  # an exception while serving, without a cause in any table
    alone: str = ""  # see FailurePattern.alone


def failure_pattern(
    needle: str, pattern: str, sentence: str, ends: EndsWhen = "start", kind: FailureKind = "cause", alone: str = ""
) -> FailurePattern:
    """Return a row of the table of failures; without a pattern the needle is the pattern."""
    return FailurePattern(line(needle, pattern), sentence, ends, kind, alone)


class FailureCollector:
    """A collector of the failures in a log: at most one per pattern, and a bounded number of exceptions.

    Args:
        failures: specific rows first: of all causes in a log, the first row wins. Exceptions come after the causes, and before
            rows of the other kinds.
        harmless: lines that are never failures, whatever they quote.
        exceptions: reader of Python exceptions; None if the engine is not a Python program.
        consequences: exceptions that only follow from another process's end.
        front: the process that answers requests: an exception of another process explains more.
    """

    def __init__(
        self,
        failures: Sequence[FailurePattern],
        harmless: re.Pattern[str],
        exceptions: ExceptionCollector | None = None,
        consequences: re.Pattern[str] | None = None,
        front: str = "",
    ) -> None:
        self._failures, self._harmless = failures, harmless
        self._exceptions, self._consequences, self._front = exceptions, consequences, front
        self._reports: dict[int, FailureReport] = {}
        self._end: int | None = None
        self._ready = False

    def feed(self, text: str, line_number: int, *, ready: bool) -> None:
        """Read a line.

        Args:
            text: the line.
            line_number: its number.
            ready: the server was ready by then.
        """
        self._ready = ready
        if self._harmless.search(text):
            return
        raised = self._exceptions.feed(text, line_number) if self._exceptions else None
        if self._exceptions and self._exceptions.in_frame:
            return  # the code in a frame only quotes such words
        for rank, row in enumerate(self._failures):
            match = row.line.match(text)
            if match is not None:
                groups = [group or "" for group in match.groups()]
                self._keep_report(
                    rank,
                    FailureReport(line_number, _fill_in(row.sentence, groups), text, alone=_fill_in(row.alone, groups)),
                )
                self._mark_end(line_number, row.ends == "always" or (row.ends == "start" and not ready))
                return
        # an exception printed by a process ends it; a logged one only explains
        self._mark_end(
            line_number, raised is not None and not raised.logged and not ready and not self._is_consequence(raised)
        )

    def forget(self) -> None:
        """Drop all failures: the start went on after them."""
        self._reports.clear()
        self._end = None
        if self._exceptions:
            self._exceptions.forget()

    def find_failure(self, line_count: int) -> FailureReport | None:
        """Return the most specific failure near the end; None if nothing proves an end.

        Args:
            line_count: the number of lines in the log so far.
        """
        end = self._end if self._end is not None else self._find_silent_end(line_count)
        if end is None:
            return None
        nearby_ranks = sorted(
            rank for rank, words in self._reports.items() if abs(words.at - end) <= MAX_DISTANCE_LINES
        )
        cause = next((rank for rank in nearby_ranks if self._failures[rank].kind == "cause"), None)
        if cause is not None:
            return self._reports[cause]
        raised = self._find_root_exception(end)
        serving = next((rank for rank in nearby_ranks if self._failures[rank].kind == "while serving"), None)
        if raised is not None and serving is not None:
            sentence = f"{self._reports[serving].sentence.rstrip('.')}: {raised.sentence}"
            return FailureReport(raised.at, _shorten(sentence), raised.line, unexplained=True)
        if raised is not None:
            return FailureReport(raised.at, _shorten(raised.sentence), raised.line)
        return self._reports[nearby_ranks[0]] if nearby_ranks else None

    def _find_silent_end(self, line_count: int) -> int | None:
        """Return the line of a start's last exception, if an inner process logged its traceback and nothing follows.

        A worker's log, or a log that was cut off, may lack the line that says that the engine ended.
        """
        last = self._exceptions.last if self._exceptions else None
        if last is None or self._ready or not (last.traced and last.logged) or not last.process:
            return None
        is_inner = not self._front or self._front not in last.process
        is_silent = line_count - last.at - len(last.detail) <= MAX_TRAILING_LINES
        return last.at if is_inner and is_silent and not self._is_consequence(last) else None

    def _find_root_exception(self, end: int) -> LoggedException | None:
        """Return the exception that the others follow from: the first one, preferably of an inner process."""
        if self._exceptions is None:
            return None
        causes = [
            raised for raised in self._exceptions.near(end, MAX_DISTANCE_LINES) if not self._is_consequence(raised)
        ]
        inner = [raised for raised in causes if not self._front or self._front not in raised.process]
        return next(iter(inner or causes), None)

    def _is_consequence(self, raised: LoggedException) -> bool:
        return bool(self._consequences and self._consequences.search(raised.sentence))

    def _keep_report(self, rank: int, report: FailureReport) -> None:
        previous = self._reports.get(rank)
        is_stale = previous is not None and self._end is None and report.at - previous.at > MAX_DISTANCE_LINES
        if previous is None or is_stale:
            self._reports[rank] = report

    def _mark_end(self, line_number: int, ends: bool) -> None:
        if ends and self._end is None:
            self._end = line_number


def _fill_in(sentence: str, groups: Sequence[str]) -> str:
    return _shorten(sentence.format(*groups))


def _shorten(sentence: str) -> str:
    return sentence if len(sentence) <= MAX_SENTENCE_CHARS else f"{sentence[: MAX_SENTENCE_CHARS - 4]} ..."

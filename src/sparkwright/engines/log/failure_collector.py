"""Find the cause of an engine's exit or failed start in its log, from exceptions and known failure lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparkwright.engines.log.text import LinePattern, line_pattern

#: first line of a traceback
TRACEBACK = "Traceback (most recent call last)"
#: maximum number of lines that belong to an exception, by a string in its first line
CONTINUATION_WINDOWS: tuple[tuple[str, int], ...] = (
    (TRACEBACK, 200),
    (" ERROR ", 12),
    ("Error: ", 12),
    ("Exception: ", 12),
)

#: maximum number of lines stored below an exception
MAX_DETAIL_LINES = 8
MAX_EXCEPTIONS, MAX_PROCESSES = 64, 32
MAX_DETAIL_CHARS = 200
#: vLLM's "(EngineCore pid=16) "; the innermost of several. SGLang's rank is part of LogFormat.prefix_pattern
PROCESS_TAG_PATTERN = re.compile(r"^(?:\(([^()]{1,80})\) ?){1,4}")
ERROR_LEVEL_PATTERN = re.compile(r"\b(?:ERROR|CRITICAL) \d\d-\d\d ")
#: an exception's last line after a traceback, where the class may have any name
ANY_EXCEPTION_NAME_PATTERN = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}([A-Za-z_]\w{0,199})(?:: ?(.*))?$")
#: an exception without a traceback: a class whose name ends in Error or Exception, or a class with its module
ERROR_NAME_PATTERN = re.compile(r"^(?:[A-Za-z_]\w{0,99}\.){0,20}(\w{0,200}(?:Error|Exception)): (.+)$")
QUALIFIED_NAME_PATTERN = re.compile(r"^(?:[a-z_]\w{0,99}\.){1,20}([A-Z]\w{0,199}): (.+)$")
#: code of a frame, even if the beginning of the traceback is missing
RAISE_STATEMENT_PATTERN = re.compile(r"^ +raise \w")
#: lines between two tracebacks of a chain
CHAIN_SEPARATORS = ("During handling of the above exception", "The above exception was the direct cause")
#: lines below an exception that do not help to explain it
UNINFORMATIVE_LINE_PATTERN = re.compile(
    r"^(?:For further information visit|The above exception|Repro command|\^+$|~*\^+~*$|[-=*]{5,}$|\{\}$"
    r"|CUDA kernel errors might be|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|Search for `cudaError"
    r"|Device-side assert(?:ion)?s? (?:tracking|can be))"
)
#: beginnings of the advice in an exception's message
ADVICE_OPENINGS = ("Possible solutions", "Possible fixes", "You can suppress this exception", "Open an issue on GitHub")
#: maximum number of lines between a failure and its cause
MAX_DISTANCE_LINES = 600
#: maximum number of lines after an exception that ends a log
MAX_TRAILING_LINES = 2
MAX_SENTENCE_CHARS = 300

#: "start": the engine exits if it is not ready yet. "never": the line only explains an exit that another line reports
ExitCondition = Literal["start", "always", "never"]
#: "while serving": the exception is appended to the sentence. "consequence": an exception explains more than this line
FailureKind = Literal["cause", "while serving", "consequence"]


@dataclass
class LoggedException:
    """An exception in a log."""

    name: str  # the class, without modules
    message: str  # first line of the message
    line_number: int
    line: str
    process: str  # such as "EngineCore pid=16"; "" if unknown
    is_logged: bool  # the engine's logger wrote it; otherwise a process printed it and exits because of it
    has_prefix: bool  # this line has the log's prefix, and so do the lines below it
    has_traceback: bool  # a traceback precedes it
    detail: list[str] = field(default_factory=list)  # the lines below it

    @property
    def sentence(self) -> str:
        """Class, message and detail as one sentence."""
        message = re.split("|".join(ADVICE_OPENINGS), self.message, maxsplit=1)[0]
        text = " ".join([f"{self.name}: {message}" if message or self.detail else self.name, *self.detail])
        return f"{' '.join(text.split()).rstrip('.: ')}."


@dataclass
class _ProcessState:
    """The state of one process while its log lines are read."""

    in_traceback: bool = False
    #: the exception that the next lines may belong to
    current: LoggedException | None = None


class ExceptionCollector:
    """Collects the newest exceptions of a log, oldest first. prefix: its prefix_pattern, see LogFormat."""

    def __init__(self, prefix: re.Pattern[str]) -> None:
        self._prefix = prefix
        self._processes: dict[str, _ProcessState] = {}
        self._exceptions: list[LoggedException] = []
        #: the last line was part of a traceback's frame
        self.in_frame = False

    def feed(self, line: str, line_number: int) -> LoggedException | None:
        """Read a line; return the exception that it begins, if any."""
        tag = PROCESS_TAG_PATTERN.match(line)
        name = tag[1] if tag else ""
        bare_line = self._prefix.sub("", line, count=1)
        # in a line by the logger, the prefix includes the tag
        message = PROCESS_TAG_PATTERN.sub("", bare_line, count=1) if bare_line == line else bare_line
        process = self._process(name)
        self.in_frame = False
        if TRACEBACK in message:
            process.in_traceback, process.current = True, None
            return None
        if RAISE_STATEMENT_PATTERN.match(message) or (
            process.in_traceback and (not message.strip() or message[0] in " |+")
        ):
            self.in_frame = True
            return None
        has_prefix = bare_line != line
        is_logged, is_traced = bool(ERROR_LEVEL_PATTERN.search(line)), process.in_traceback
        if _continues_on_next_line(process.current) and not is_traced:
            _add_detail(process, message, has_prefix)
            return None
        exception = self._match_exception(
            message, process, LoggedException("", "", line_number, line, name, is_logged, has_prefix, is_traced)
        )
        if exception is None:
            _add_detail(process, message, has_prefix)
        process.in_traceback = False
        return exception

    def find_near(self, line_number: int, max_distance: int) -> Iterator[LoggedException]:
        """Yield the exceptions within a distance of a line, oldest first."""
        return (exception for exception in self._exceptions if abs(exception.line_number - line_number) <= max_distance)

    @property
    def last(self) -> LoggedException | None:
        return self._exceptions[-1] if self._exceptions else None

    def forget(self) -> None:
        """Drop all exceptions, because the engine continued after them."""
        self._processes.clear()
        self._exceptions.clear()

    def _process(self, name: str) -> _ProcessState:
        if name not in self._processes and len(self._processes) >= MAX_PROCESSES:
            self._processes.clear()
        return self._processes.setdefault(name, _ProcessState())

    def _match_exception(
        self, message: str, process: _ProcessState, exception: LoggedException
    ) -> LoggedException | None:
        patterns = (
            (ANY_EXCEPTION_NAME_PATTERN,) if process.in_traceback else (ERROR_NAME_PATTERN, QUALIFIED_NAME_PATTERN)
        )
        match = next((match for pattern in patterns if (match := pattern.match(message.strip()))), None)
        if match is None:
            return None
        exception.name, exception.message = match[1], (match[2] or "").strip()
        process.current = exception
        self._exceptions.append(exception)
        del self._exceptions[:-MAX_EXCEPTIONS]
        return exception


def _continues_on_next_line(current: LoggedException | None) -> bool:
    """Return True if the message continues in the next line, as after "backend='inductor' raised:"."""
    return current is not None and current.message.endswith(":") and not current.detail


def _add_detail(process: _ProcessState, message: str, has_prefix: bool) -> None:
    """Add a line to the exception above it, or end the exception if the line does not belong to it."""
    current, text = process.current, message.strip()
    if current is None or not text:
        return
    if (
        has_prefix != current.has_prefix
        or text.startswith((*CHAIN_SEPARATORS, *ADVICE_OPENINGS))
        or len(current.detail) >= MAX_DETAIL_LINES
    ):
        process.current = None
    elif not UNINFORMATIVE_LINE_PATTERN.match(text):
        current.detail.append(text[:MAX_DETAIL_CHARS])


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A log line that reports a failure, with the sentence that explains it."""

    line: LinePattern
    #: format string for the groups of the line's pattern
    sentence: str
    #: when the engine exits after this line
    exit_condition: ExitCondition = "start"
    kind: FailureKind = "cause"
    #: sentence for a server on a single host; "" to use `sentence`
    single_host_sentence: str = ""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A failure in a log."""

    line_number: int
    sentence: str
    line: str
    #: an exception while serving without a known cause
    unexplained: bool = False
    #: as in FailurePattern
    single_host_sentence: str = ""


def failure_pattern(
    needle: str,
    pattern: str,
    sentence: str,
    exit_condition: ExitCondition = "start",
    kind: FailureKind = "cause",
    single_host_sentence: str = "",
) -> FailurePattern:
    """Return a failure pattern; without a pattern, for all lines with the needle."""
    return FailurePattern(line_pattern(needle, pattern), sentence, exit_condition, kind, single_host_sentence)


class FailureCollector:
    """Collects the failures in a log: at most one for each pattern, and a limited number of exceptions.

    Args:
        failures: specific patterns first; if a log has several causes, the first pattern wins. Exceptions come after the causes and
            before patterns of the other kinds.
        harmless_pattern, secondary_error_pattern, front_process: see LogFormat.
        exceptions: collector of Python exceptions; None if the engine is not written in Python.
    """

    def __init__(
        self,
        failures: Sequence[FailurePattern],
        harmless_pattern: re.Pattern[str],
        exceptions: ExceptionCollector | None = None,
        secondary_error_pattern: re.Pattern[str] | None = None,
        front_process: str = "",
    ) -> None:
        self._failures, self._harmless_pattern = failures, harmless_pattern
        self._exceptions, self._secondary_error_pattern, self._front_process = (
            exceptions,
            secondary_error_pattern,
            front_process,
        )
        #: by index of the pattern
        self._reports: dict[int, FailureReport] = {}
        #: number of the line that proves the engine's exit
        self._exit_line: int | None = None
        self._ready = False

    def feed(self, text: str, line_number: int, *, ready: bool) -> None:
        """Read a line. ready: the server was ready before it."""
        self._ready = ready
        if self._harmless_pattern.search(text):
            return
        exception = self._exceptions.feed(text, line_number) if self._exceptions else None
        if self._exceptions and self._exceptions.in_frame:
            return  # the source code in a frame may contain the text of a failure
        for index, pattern in enumerate(self._failures):
            match = pattern.line.match(text)
            if match is not None:
                groups = [group or "" for group in match.groups()]
                sentence = _shorten(pattern.sentence.format(*groups))
                single_host_sentence = _shorten(pattern.single_host_sentence.format(*groups))
                self._keep_report(
                    index, FailureReport(line_number, sentence, text, single_host_sentence=single_host_sentence)
                )
                if pattern.exit_condition == "always" or (pattern.exit_condition == "start" and not ready):
                    self._mark_exit(line_number)
                return
        # a process exits after printing an exception, but not after logging one
        if exception is not None and not exception.is_logged and not ready and not self._is_secondary(exception):
            self._mark_exit(line_number)

    def forget(self) -> None:
        """Drop all failures, because the engine continued after them."""
        self._reports.clear()
        self._exit_line = None
        if self._exceptions:
            self._exceptions.forget()

    def find_failure(self, line_count: int) -> FailureReport | None:
        """Return the most specific failure near the engine's exit; None if the log does not prove an exit.

        line_count: number of lines in the log.
        """
        exit_line = self._exit_line if self._exit_line is not None else self._find_silent_exit(line_count)
        if exit_line is None:
            return None
        nearby_indexes = sorted(
            index
            for index, report in self._reports.items()
            if abs(report.line_number - exit_line) <= MAX_DISTANCE_LINES
        )
        cause_index = next((index for index in nearby_indexes if self._failures[index].kind == "cause"), None)
        if cause_index is not None:
            return self._reports[cause_index]
        exception = self._find_root_exception(exit_line)
        serving_index = next((index for index in nearby_indexes if self._failures[index].kind == "while serving"), None)
        if exception is not None and serving_index is not None:
            sentence = f"{self._reports[serving_index].sentence.rstrip('.')}: {exception.sentence}"
            return FailureReport(exception.line_number, _shorten(sentence), exception.line, unexplained=True)
        if exception is not None:
            return FailureReport(exception.line_number, _shorten(exception.sentence), exception.line)
        return self._reports[nearby_indexes[0]] if nearby_indexes else None

    def _find_silent_exit(self, line_count: int) -> int | None:
        """Return the line of a start's last exception, if an inner process logged its traceback at the end of the log.

        A worker's log or a truncated log may lack the line about the engine's exit.
        """
        last = self._exceptions.last if self._exceptions else None
        if last is None or self._ready or not (last.has_traceback and last.is_logged) or not last.process:
            return None
        is_inner = not self._front_process or self._front_process not in last.process
        is_at_end = line_count - last.line_number - len(last.detail) <= MAX_TRAILING_LINES
        return last.line_number if is_inner and is_at_end and not self._is_secondary(last) else None

    def _find_root_exception(self, exit_line: int) -> LoggedException | None:
        """Return the exception that caused the others: the first one, preferably of an inner process."""
        if self._exceptions is None:
            return None
        nearby_exceptions = self._exceptions.find_near(exit_line, MAX_DISTANCE_LINES)
        causes = [exception for exception in nearby_exceptions if not self._is_secondary(exception)]
        inner_causes = [
            exception for exception in causes if not self._front_process or self._front_process not in exception.process
        ]
        return next(iter(inner_causes or causes), None)

    def _is_secondary(self, exception: LoggedException) -> bool:
        return bool(self._secondary_error_pattern and self._secondary_error_pattern.search(exception.sentence))

    def _keep_report(self, index: int, report: FailureReport) -> None:
        """Keep the first report of a pattern; a later one replaces it only if it is far away and no exit is known."""
        first = self._reports.get(index)
        if first is None or (self._exit_line is None and report.line_number - first.line_number > MAX_DISTANCE_LINES):
            self._reports[index] = report

    def _mark_exit(self, line_number: int) -> None:
        if self._exit_line is None:
            self._exit_line = line_number


def _shorten(sentence: str) -> str:
    return sentence if len(sentence) <= MAX_SENTENCE_CHARS else f"{sentence[: MAX_SENTENCE_CHARS - 4]} ..."

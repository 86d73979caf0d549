"""A reader of an engine's log: its settings and its progress, each with the line as evidence, or unknown.

Only the last start counts; later lines win over the config dump; a missing line proves nothing.
"""

from __future__ import annotations

from datetime import datetime

from sparkwright.engines.log.book import LogFormat
from sparkwright.engines.log.last_words import ExceptionCollector, FailureCollector, FailureReport
from sparkwright.engines.log.state import EngineState, Reading, shorten_evidence
from sparkwright.engines.log.text import (
    LINE_BYTES,
    Line,
    LineSplitter,
    LogText,
    decode_line,
    iter_chunks,
    parse_time,
    seconds_between,
    strip_wrapper,
)

__all__ = ["EngineState", "LogReader", "Reading", "read_log", "strip_prefix"]

#: a line's message is at its beginning; few lines are longer
MAX_LINE_CHARS = 4096
#: number of mentions of arguments in other lines to skip
CONTEXT_LINES = 20


class LogReader:
    """An incremental reader of a log, fed by lines or by chunks of bytes. `state` holds what is known so far.

    Memory stays bounded however long the log is: only evidence is kept of its text.
    """

    def __init__(self, log_format: LogFormat) -> None:
        self._book, self._filter = log_format, log_format.line_filter
        self._cutter = LineSplitter()
        self._announced = False
        self._stopping = False
        self._count = 0
        #: lines before this number are read whatever they hold
        self._window_end = 0
        self._begin()

    def feed(self, line: str) -> bool:
        """Read one line, without its end. Return True if another start begins with it; the state of the previous start is then
        dropped."""
        previous_state = self.state
        raw = line.encode(errors="replace")[:LINE_BYTES]
        if raw and not self._filter.is_noise(raw):
            self._count += 1
            if self._filter.in_line(raw) or self._count < self._window_end:
                self._window_end = max(self._window_end, self._count + 1 + self._filter.window(raw))
                self._take(decode_line(raw))
        return previous_state.known and self.state is not previous_state

    def push(self, chunk: bytes) -> None:
        """Read a chunk of the log, cut anywhere."""
        self._lines(self._cutter.push(chunk))

    def finish(self) -> EngineState:
        """Return the state at the end, with the reason of a failure if the log holds one."""
        self._lines(self._cutter.rest())
        failure = self._last_words.verdict(self._count)
        if failure is not None:
            self.state.keep("failure", self._add_suspects(failure), failure.line)
            if not self.state.ready:
                self.state.keep("ready", False, failure.line)
        if self.state.known:
            for name, (value, source) in self._book.always.items():
                self.state.readings.setdefault(name, Reading(value, source))
        return self.state

    def _add_suspects(self, failure: FailureReport) -> str:
        """Return the sentence of a failure; without a known cause, add the setting that may be the cause."""
        members = self.state.value("world_size") or self.state.value("intended_world_size")
        sentence = failure.alone if failure.alone and members == 1 else failure.sentence
        suspects = (
            sentence.format(value)
            for name, sentence in self._book.suspects
            if failure.unexplained and (value := self.state.value(name)) is not None
        )
        return " ".join((sentence, *suspects))

    # -- lines -----------------------------------------------------------------------------------------------------------

    def _lines(self, block: bytes) -> None:
        lines_before = self._count
        block = block[_find_last_start(block, self._book) :]
        candidates, lines = self._filter.filter_block(block, LINE_BYTES)
        if self._window_end > lines_before + 1 or self._filter.opens_window(block):
            candidates = self._add_following_lines(candidates, lines)
        for index, line in candidates:
            self._count = lines_before + index + 1
            if not self._filter.is_noise(line):
                self._take(decode_line(line))
        self._count = lines_before + len(lines)

    def _add_following_lines(self, candidates: list[tuple[int, bytes]], lines: list[bytes]) -> list[tuple[int, bytes]]:
        """Return the lines that were found, and those that follow an exception or a traceback."""
        first_number = self._count + 1
        indexes = set(range(min(max(0, self._window_end - first_number), len(lines))))
        for at, line in candidates:
            indexes.add(at)
            window = self._filter.window(line)
            if window:
                indexes.update(range(at + 1, min(at + 1 + window, len(lines))))
                self._window_end = max(self._window_end, first_number + at + 1 + window)
        return [(at, lines[at][:LINE_BYTES]) for at in sorted(indexes)]

    def _take(self, line: str) -> None:
        line = strip_wrapper(line)
        if not self._book.uncut or self._book.uncut not in line:
            line = line[:MAX_LINE_CHARS]
        self._detect_start(line)
        self._read_stage(line)
        self._settings(line)
        if self._stopping:
            return
        self._last_words.feed(line, self._count, ready=self.state.ready)
        stops = self._book.stopping + (self._book.stopping_when_ready if self.state.ready else ())
        if any(row.match(line) for row in stops):
            self._stopping = True
            self.state.keep("stopped", True, line)

    # -- starts and stages -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.state = EngineState(also=self._book.also)
        book = self._book
        exceptions = ExceptionCollector(book.prefix) if book.tracebacks else None
        self._last_words = FailureCollector(book.failures, book.harmless, exceptions, book.consequences, book.front)
        self._stopping = False
        self._began: dict[str, datetime] = {}
        self._clock: datetime | None = None
        self._spans: dict[str, datetime | None] = {}

    def _detect_start(self, line: str) -> None:
        """Begin a new state if a line begins a start: a banner, or the arguments if no banner came before them."""
        book = self._book
        is_banner = any(banner.match(line) for banner in book.banners)
        has_arguments = book.arguments.match(line)
        refusals = book.refusals + (book.refused if self.state.stage else ())
        if is_banner or (has_arguments and not self._announced) or any(row.match(line) for row in refusals):
            self._begin()
        if is_banner or has_arguments:
            self._announced = is_banner

    def _read_stage(self, line: str) -> None:
        time = self._read_time(line)
        book = self._book
        reached = book.stage_names.index(self.state.stage) if self.state.stage else -1
        for index, (name, first_lines) in enumerate(book.stages):
            if index > reached and any(beginning.match(line) for beginning in first_lines):
                self._enter_stage(name, time)
                if name == book.stage_names[-1]:
                    self.state.keep("ready", True, line)
                    self._keep_time_since_start("ready_s", line)
        shards = book.shards.match(line) if book.shards else None
        if shards:
            self.state.shards = (int(shards.group(1)), int(shards.group(2)))

    def _enter_stage(self, stage: str, time: datetime | None) -> None:
        previous = self.state.stage
        if previous in self._began and time is not None:
            self.state.stage_s[previous] = seconds_between(self._began[previous], time)
        if time is not None:
            self._began[stage] = time
        self.state.stage = stage
        self._last_words.forget()

    def _read_time(self, line: str) -> datetime | None:
        """Return the time of a line, or of the last line with a time."""
        self._clock = parse_time(line, self._book.clock) or self._clock
        return self._clock

    def _keep_time_since_start(self, name: str, line: str) -> None:
        start = self._began.get(self._book.stage_names[0])
        if start is not None and self._clock is not None:
            self.state.keep(name, seconds_between(start, self._clock), line)

    # -- settings ------------------------------------------------------------------------------------------------------------

    def _settings(self, line: str) -> None:
        book = self._book
        if book.hook(self.state, line):
            return
        for name, row in book.values:
            match = row.match(line)
            if match:
                value = book.types.get(name, str)(match.group(1))
                if value is not None and name in book.summed:
                    value = round(value + (self.state.value(name) or 0), 3)
                self.state.keep(name, value, line)
        for kind, row in book.kernels:
            match = row.match(line)
            if match:
                self.state.add_kernel(kind, match.group(1), line)
        for name, row, value in book.fixed:
            if row.match(line):
                self.state.keep(name, value, line)
        self._span(line)
        for row in (*book.unmet, *book.warnings):
            if row.match(line):
                self._keep_warning(row, line)

    def _span(self, line: str) -> None:
        for name, begins, ends in self._book.spans:
            if begins.match(line):
                self._spans[name] = parse_time(line, self._book.clock)
            elif ends.match(line) and (began := self._spans.get(name)) and self._clock:
                self.state.keep(name, seconds_between(began, self._clock), line)

    def _keep_warning(self, row: Line, line: str) -> None:
        """Keep each kind of warning once, since some come with every request; different groups of the pattern make different
        kinds."""
        new_match = row.match(line)
        matches = (row.match(warning) for warning in self.state.warnings)
        if new_match and not any(match and match.groups() == new_match.groups() for match in matches):
            self.state.warnings.append(shorten_evidence(line))


def read_log(text: LogText, log_format: LogFormat) -> EngineState:
    """Return the state of an engine from a whole log.

    text: the log, or pieces of it in their order, or a file opened as bytes. Truncated, coloured and non-UTF-8 logs are accepted;
    nothing in a log raises.
    """
    reader = LogReader(log_format)
    for chunk in iter_chunks(text):
        reader.push(chunk)
    return reader.finish()


def strip_prefix(line: str, log_format: LogFormat) -> str:
    """Return a line without its prefix (source, time and place)."""
    return log_format.prefix.sub("", line, count=1)


def _find_last_start(block: bytes, log_format: LogFormat) -> int:
    """Return the offset of the line with the last but one mention of arguments; the last start begins after it."""
    needle, position, mentions = log_format.arguments.needle.encode(), len(block), 0
    for _ in range(2 * CONTEXT_LINES):
        position = block.rfind(needle, 0, position)
        if position < 0:
            return 0
        begin = block.rfind(b"\n", 0, position) + 1
        line = block[begin : block.find(b"\n", position)]
        mentions += len(line) <= LINE_BYTES and not log_format.line_filter.is_noise(line)
        if mentions == 2:
            return begin
    return 0

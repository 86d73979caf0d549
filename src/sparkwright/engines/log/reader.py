"""A reader of an engine's log: its settings and its progress, each with the line as evidence, or unknown.

Only the last start counts; later lines win over the config dump; a missing line proves nothing.
"""

from __future__ import annotations

from datetime import datetime

from sparkwright.engines.log.failure_collector import ExceptionCollector, FailureCollector, FailureReport
from sparkwright.engines.log.log_format import LogFormat
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
        self._format, self._filter = log_format, log_format.line_filter
        self._splitter = LineSplitter()
        self._announced = False
        self._stopping = False
        self._count = 0
        #: lines before this number are read whatever they hold
        self._window_end = 0
        self._reset()

    def feed(self, line: str) -> bool:
        """Read one line, without its end. Return True if another start begins with it; the state of the previous start is then
        dropped."""
        previous_state = self.state
        raw = line.encode(errors="replace")[:LINE_BYTES]
        if raw and not self._filter.is_noise(raw):
            self._count += 1
            if self._filter.matches_line(raw) or self._count < self._window_end:
                self._window_end = max(self._window_end, self._count + 1 + self._filter.lines_after(raw))
                self._read_line(decode_line(raw))
        return previous_state.known and self.state is not previous_state

    def push(self, chunk: bytes) -> None:
        """Read a chunk of the log, cut anywhere."""
        self._read_block(self._splitter.push(chunk))

    def finish(self) -> EngineState:
        """Return the state at the end, with the reason of a failure if the log holds one."""
        self._read_block(self._splitter.rest())
        failure = self._failures.find_failure(self._count)
        if failure is not None:
            self.state.keep("failure", self._add_suspects(failure), failure.line)
            if not self.state.ready:
                self.state.keep("ready", False, failure.line)
        if self.state.known:
            for name, (value, source) in self._format.always.items():
                self.state.readings.setdefault(name, Reading(value, source))
        return self.state

    def _add_suspects(self, failure: FailureReport) -> str:
        """Return the sentence of a failure; without a known cause, add the setting that may be the cause."""
        members = self.state.value("world_size") or self.state.value("intended_world_size")
        sentence = failure.alone if failure.alone and members == 1 else failure.sentence
        suspects = (
            sentence.format(value)
            for name, sentence in self._format.suspects
            if failure.unexplained and (value := self.state.value(name)) is not None
        )
        return " ".join((sentence, *suspects))

    # -- lines -----------------------------------------------------------------------------------------------------------

    def _read_block(self, block: bytes) -> None:
        lines_before = self._count
        block = block[_find_last_start(block, self._format) :]
        candidates, lines = self._filter.filter_block(block, LINE_BYTES)
        if self._window_end > lines_before + 1 or self._filter.opens_window(block):
            candidates = self._add_following_lines(candidates, lines)
        for index, line in candidates:
            self._count = lines_before + index + 1
            if not self._filter.is_noise(line):
                self._read_line(decode_line(line))
        self._count = lines_before + len(lines)

    def _add_following_lines(self, candidates: list[tuple[int, bytes]], lines: list[bytes]) -> list[tuple[int, bytes]]:
        """Return the lines that were found, and those that follow an exception or a traceback."""
        first_number = self._count + 1
        indexes = set(range(min(max(0, self._window_end - first_number), len(lines))))
        for at, line in candidates:
            indexes.add(at)
            window = self._filter.lines_after(line)
            if window:
                indexes.update(range(at + 1, min(at + 1 + window, len(lines))))
                self._window_end = max(self._window_end, first_number + at + 1 + window)
        return [(at, lines[at][:LINE_BYTES]) for at in sorted(indexes)]

    def _read_line(self, line: str) -> None:
        line = strip_wrapper(line)
        if not self._format.uncut or self._format.uncut not in line:
            line = line[:MAX_LINE_CHARS]
        self._detect_start(line)
        self._read_stage(line)
        self._read_settings(line)
        if self._stopping:
            return
        self._failures.feed(line, self._count, ready=self.state.ready)
        stops = self._format.stopping + (self._format.stopping_when_ready if self.state.ready else ())
        if any(row.match(line) for row in stops):
            self._stopping = True
            self.state.keep("stopped", True, line)

    # -- starts and stages -------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self.state = EngineState(also=self._format.also)
        log_format = self._format
        exceptions = ExceptionCollector(log_format.prefix) if log_format.tracebacks else None
        self._failures = FailureCollector(
            log_format.failures, log_format.harmless, exceptions, log_format.consequences, log_format.front
        )
        self._stopping = False
        self._stage_starts: dict[str, datetime] = {}
        self._clock: datetime | None = None
        self._span_starts: dict[str, datetime | None] = {}

    def _detect_start(self, line: str) -> None:
        """Begin a new state if a line begins a start: a banner, or the arguments if no banner came before them."""
        log_format = self._format
        is_banner = any(banner.match(line) for banner in log_format.banners)
        has_arguments = log_format.arguments.match(line)
        refusals = log_format.refusals + (log_format.refused if self.state.stage else ())
        if is_banner or (has_arguments and not self._announced) or any(row.match(line) for row in refusals):
            self._reset()
        if is_banner or has_arguments:
            self._announced = is_banner

    def _read_stage(self, line: str) -> None:
        time = self._read_time(line)
        log_format = self._format
        reached = log_format.stage_names.index(self.state.stage) if self.state.stage else -1
        for index, (name, first_lines) in enumerate(log_format.stages):
            if index > reached and any(beginning.match(line) for beginning in first_lines):
                self._enter_stage(name, time)
                if name == log_format.stage_names[-1]:
                    self.state.keep("ready", True, line)
                    self._keep_time_since_start("ready_s", line)
        shards = log_format.shards.match(line) if log_format.shards else None
        if shards:
            self.state.shards = (int(shards.group(1)), int(shards.group(2)))

    def _enter_stage(self, stage: str, time: datetime | None) -> None:
        previous = self.state.stage
        if previous in self._stage_starts and time is not None:
            self.state.stage_s[previous] = seconds_between(self._stage_starts[previous], time)
        if time is not None:
            self._stage_starts[stage] = time
        self.state.stage = stage
        self._failures.forget()

    def _read_time(self, line: str) -> datetime | None:
        """Return the time of a line, or of the last line with a time."""
        self._clock = parse_time(line, self._format.clock) or self._clock
        return self._clock

    def _keep_time_since_start(self, name: str, line: str) -> None:
        start = self._stage_starts.get(self._format.stage_names[0])
        if start is not None and self._clock is not None:
            self.state.keep(name, seconds_between(start, self._clock), line)

    # -- settings ------------------------------------------------------------------------------------------------------------

    def _read_settings(self, line: str) -> None:
        log_format = self._format
        if log_format.hook(self.state, line):
            return
        for name, row in log_format.values:
            match = row.match(line)
            if match:
                value = log_format.types.get(name, str)(match.group(1))
                if value is not None and name in log_format.summed:
                    value = round(value + (self.state.value(name) or 0), 3)
                self.state.keep(name, value, line)
        for kind, row in log_format.kernels:
            match = row.match(line)
            if match:
                self.state.add_kernel(kind, match.group(1), line)
        for name, row, value in log_format.fixed:
            if row.match(line):
                self.state.keep(name, value, line)
        self._read_spans(line)
        for row in (*log_format.unmet, *log_format.warnings):
            if row.match(line):
                self._keep_warning(row, line)

    def _read_spans(self, line: str) -> None:
        for name, begins, ends in self._format.spans:
            if begins.match(line):
                self._span_starts[name] = parse_time(line, self._format.clock)
            elif ends.match(line) and (began := self._span_starts.get(name)) and self._clock:
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

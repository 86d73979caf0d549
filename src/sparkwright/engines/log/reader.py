"""Read an engine's log: settings and progress of the last start, each with a log line as evidence.

Later lines take precedence over the config dump. If a line is missing, the value is unknown.
"""

from __future__ import annotations

from datetime import datetime

from sparkwright.engines.log.failure_collector import ExceptionCollector, FailureCollector, FailureReport
from sparkwright.engines.log.log_format import LogFormat
from sparkwright.engines.log.state import EngineState, Reading, shorten_evidence
from sparkwright.engines.log.text import (
    LINE_BYTES,
    LinePattern,
    LineSplitter,
    LogText,
    decode_line,
    iter_chunks,
    parse_time,
    seconds_between,
    strip_wrapper,
)

__all__ = ["EngineState", "LogReader", "Reading", "read_log", "strip_prefix"]

#: longer lines are truncated: their message is at the beginning
MAX_LINE_CHARS = 4096
#: maximum number of occurrences of the arguments' needle to examine in a block
MAX_MENTIONS = 40


class LogReader:
    """An incremental reader of a log, which receives lines or chunks of bytes. `state` is the state so far.

    Its memory is bounded: it keeps no text of the log except evidence.
    """

    def __init__(self, log_format: LogFormat) -> None:
        self._format, self._filter = log_format, log_format.line_filter
        self._splitter = LineSplitter()
        self._has_banner = False
        self._is_stopping = False
        #: lines read so far, without noise
        self._line_count = 0
        #: lines before this number are read even without a needle
        self._window_end = 0
        self._reset()

    def feed(self, line: str) -> bool:
        """Read a line without its line end. Return True if it begins another start, which drops the previous start's state."""
        previous_state = self.state
        raw = line.encode(errors="replace")[:LINE_BYTES]
        if raw and not self._filter.is_noise(raw):
            self._line_count += 1
            if self._filter.matches_line(raw) or self._line_count < self._window_end:
                self._window_end = max(self._window_end, self._line_count + 1 + self._filter.lines_after(raw))
                self._read_line(decode_line(raw))
        return previous_state.known and self.state is not previous_state

    def push(self, chunk: bytes) -> None:
        """Read a chunk of the log, which may end inside a line."""
        self._read_block(self._splitter.push(chunk))

    def finish(self) -> EngineState:
        """Return the state at the end of the log, including its failure."""
        self._read_block(self._splitter.take_remainder())
        failure = self._failures.find_failure(self._line_count)
        if failure is not None:
            self.state.record("failure", self._add_suspects(failure), failure.line)
            if not self.state.ready:
                self.state.record("ready", False, failure.line)
        if self.state.known:
            for name, (value, source) in self._format.constant_readings.items():
                self.state.readings.setdefault(name, Reading(value, source))
        return self.state

    def _add_suspects(self, failure: FailureReport) -> str:
        """Return the explanation of a failure, with the settings that may be its cause if the cause is unknown."""
        member_count = self.state.value("world_size") or self.state.value("intended_world_size")
        sentences = [
            failure.single_host_sentence if failure.single_host_sentence and member_count == 1 else failure.sentence
        ]
        for name, suspicion in self._format.suspects if failure.unexplained else ():
            value = self.state.value(name)
            if value is not None:
                sentences.append(suspicion.format(value))
        return " ".join(sentences)

    # -- lines -----------------------------------------------------------------------------------------------------------

    def _read_block(self, block: bytes) -> None:
        lines_before = self._line_count
        block = block[_find_last_start(block, self._format) :]
        candidates, lines = self._filter.filter_block(block, LINE_BYTES)
        if self._window_end > lines_before + 1 or self._filter.opens_window(block):
            candidates = self._add_following_lines(candidates, lines)
        for index, line in candidates:
            self._line_count = lines_before + index + 1
            if not self._filter.is_noise(line):
                self._read_line(decode_line(line))
        self._line_count = lines_before + len(lines)

    def _add_following_lines(self, candidates: list[tuple[int, bytes]], lines: list[bytes]) -> list[tuple[int, bytes]]:
        """Return the candidates and the lines that may belong to an exception or a traceback before them."""
        first_number = self._line_count + 1
        indexes = set(range(min(max(0, self._window_end - first_number), len(lines))))
        for index, line in candidates:
            indexes.add(index)
            window = self._filter.lines_after(line)
            if window:
                indexes.update(range(index + 1, min(index + 1 + window, len(lines))))
                self._window_end = max(self._window_end, first_number + index + 1 + window)
        return [(index, lines[index][:LINE_BYTES]) for index in sorted(indexes)]

    def _read_line(self, line: str) -> None:
        line = strip_wrapper(line)
        if not self._format.long_line_needle or self._format.long_line_needle not in line:
            line = line[:MAX_LINE_CHARS]
        self._detect_start(line)
        self._read_stage(line)
        self._read_settings(line)
        if self._is_stopping:
            return
        self._failures.feed(line, self._line_count, ready=self.state.ready)
        stop_lines = self._format.shutdown_lines + (self._format.shutdown_lines_when_ready if self.state.ready else ())
        if any(row.match(line) for row in stop_lines):
            self._is_stopping = True
            self.state.record("stopped", True, line)

    # -- starts and stages -------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self.state = EngineState(extra_readings=self._format.extra_readings)
        log_format = self._format
        exceptions = ExceptionCollector(log_format.prefix_pattern) if log_format.has_tracebacks else None
        self._failures = FailureCollector(
            log_format.failures,
            log_format.harmless_pattern,
            exceptions,
            log_format.secondary_error_pattern,
            log_format.front_process,
        )
        self._is_stopping = False
        self._stage_starts: dict[str, datetime] = {}
        self._clock: datetime | None = None
        self._span_starts: dict[str, datetime | None] = {}

    def _detect_start(self, line: str) -> None:
        """Begin a new state if a line begins a start: a banner, a refusal, or the arguments without a banner before them."""
        log_format = self._format
        is_banner = any(banner.match(line) for banner in log_format.banners)
        has_arguments = log_format.arguments_line.match(line)
        refusals = log_format.refusals + (log_format.later_refusals if self.state.stage else ())
        if is_banner or (has_arguments and not self._has_banner) or any(row.match(line) for row in refusals):
            # what an image's entrypoint prints before its first start belongs to that start
            earlier_warnings = [] if self.state.known else self.state.warnings
            self._reset()
            self.state.warnings = earlier_warnings
        if is_banner or has_arguments:
            self._has_banner = is_banner

    def _read_stage(self, line: str) -> None:
        log_format = self._format
        self._clock = time = parse_time(line, log_format.clock_pattern) or self._clock  # some lines have no time
        current_index = log_format.stage_names.index(self.state.stage) if self.state.stage else -1
        for index, (name, first_lines) in enumerate(log_format.stages):
            if index > current_index and any(first_line.match(line) for first_line in first_lines):
                self._enter_stage(name, time)
                if name == log_format.stage_names[-1]:
                    self.state.record("ready", True, line)
                    start = self._stage_starts.get(log_format.stage_names[0])
                    if start is not None and time is not None:
                        self.state.record("ready_s", seconds_between(start, time), line)
        shards = log_format.shards_line.match(line) if log_format.shards_line else None
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

    # -- settings ------------------------------------------------------------------------------------------------------------

    def _read_settings(self, line: str) -> None:
        log_format = self._format
        if log_format.hook(self.state, line):
            return
        for name, row in log_format.reading_lines:
            match = row.match(line)
            if match:
                value = log_format.value_parsers.get(name, str)(match.group(1))
                if value is not None and name in log_format.summed_readings:
                    value = round(value + (self.state.value(name) or 0), 3)
                self.state.record(name, value, line)
        for kind, row in log_format.kernels:
            match = row.match(line)
            if match:
                self.state.add_kernel(kind, match.group(1), line)
        for name, row, value in log_format.implied_readings:
            if row.match(line):
                self.state.record(name, value, line)
        self._read_spans(line)
        for row in (*log_format.unavailable_features, *log_format.warnings):
            if row.match(line):
                self._keep_warning(row, line)

    def _read_spans(self, line: str) -> None:
        for name, first_line, last_line in self._format.spans:
            if first_line.match(line):
                self._span_starts[name] = parse_time(line, self._format.clock_pattern)
            elif last_line.match(line) and (start := self._span_starts.get(name)) and self._clock:
                self.state.record(name, seconds_between(start, self._clock), line)

    def _keep_warning(self, row: LinePattern, line: str) -> None:
        """Keep a warning, but only the first of those with the same matched groups, because some are logged for every request."""
        new_match = row.match(line)
        matches = (row.match(warning) for warning in self.state.warnings)
        if new_match and not any(match and match.groups() == new_match.groups() for match in matches):
            self.state.warnings.append(shorten_evidence(line))


def read_log(text: LogText, log_format: LogFormat) -> EngineState:
    """Return the state of an engine from a complete log. Truncated, coloured and non-UTF-8 logs are accepted."""
    reader = LogReader(log_format)
    for chunk in iter_chunks(text):
        reader.push(chunk)
    return reader.finish()


def strip_prefix(line: str, log_format: LogFormat) -> str:
    """Return a line without the engine's prefix, such as process, time and source file."""
    return log_format.prefix_pattern.sub("", line, count=1)


def _find_last_start(block: bytes, log_format: LogFormat) -> int:
    """Return the offset of the second-to-last line with arguments, which precedes the last start; 0 if there is none."""
    needle, position, start_count = log_format.arguments_line.needle.encode(), len(block), 0
    for _ in range(MAX_MENTIONS):
        position = block.rfind(needle, 0, position)
        if position < 0:
            return 0
        line_start = block.rfind(b"\n", 0, position) + 1
        line = block[line_start : block.find(b"\n", position)]
        start_count += len(line) <= LINE_BYTES and not log_format.line_filter.is_noise(line)
        if start_count == 2:
            return line_start
    return 0

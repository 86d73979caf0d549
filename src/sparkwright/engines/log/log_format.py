"""The format of an engine's log: tables for `reader`, and a fast filter for the lines that match them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparkwright.engines.log.failure_collector import CONTINUATION_WINDOWS, FailurePattern
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import LinePattern


def _ignore_line(state: EngineState, line: str) -> bool:
    return False


def _no_settings(line: str) -> None:
    return None


@dataclass(frozen=True)
class ResolutionRules:
    """Rules for comparing flags of one engine with the settings that the engine resolved them to."""

    #: reading with the resolved value, by flag; it takes precedence over the dump, which may be printed earlier
    readings: Mapping[str, str] = field(default_factory=dict)
    #: kind of kernel that the flag selects, by flag
    kernels: Mapping[str, str] = field(default_factory=dict)
    #: flags that are not compared: names, paths, and values that the engine rounds by design
    ignored_flags: frozenset[str] = frozenset()
    #: reading whose value is the opposite of the flag's, by flag
    negated_readings: Mapping[str, str] = field(default_factory=dict)
    #: groups of values that mean the same
    equivalent_values: tuple[frozenset[str], ...] = ()
    #: parts of a kernel's printed name that do not identify it
    ignored_name_parts: re.Pattern[str] = re.compile(r"(?!)")
    #: parser of a flag's value, by flag, such as "128k" to 128000
    value_parsers: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LogFormat:
    """The format of one engine's log."""

    #: strings that occur in uninformative lines, of which a log may contain a million
    noise: tuple[str, str, str]
    #: line with the arguments, which begins a start if no banner precedes it
    arguments_line: LinePattern
    #: stages of a start in their order, each with the lines that begin it; the last stage is ready
    stages: tuple[tuple[str, tuple[LinePattern, ...]], ...]
    failures: tuple[FailurePattern, ...]
    #: lines that are never failures
    harmless_pattern: re.Pattern[str]
    #: the text before a line's message, such as process, time and source file
    prefix_pattern: re.Pattern[str]
    #: pattern for text.parse_time
    clock_pattern: re.Pattern[str]
    #: the engine is written in Python: exceptions of any class are recognized, with the lines below them
    has_tracebacks: bool = False
    #: exceptions that result from the exit of another process
    secondary_error_pattern: re.Pattern[str] = re.compile(r"(?!)")
    #: name of the process that answers requests; its exceptions may concern a single request
    front_process: str = ""
    #: settings that may explain a failure without a known cause, each with a sentence for its value
    suspects: tuple[tuple[str, str], ...] = ()
    #: first lines of a start
    banners: tuple[LinePattern, ...] = ()
    #: lines that begin a start and also end it, such as a usage message
    refusals: tuple[LinePattern, ...] = ()
    #: like `refusals`, but only after another start
    later_refusals: tuple[LinePattern, ...] = ()
    #: line with the number of loaded shards and the total number of shards
    shards_line: LinePattern | None = None
    #: readings, each with a line whose first group is the value
    reading_lines: tuple[tuple[str, LinePattern], ...] = ()
    #: readings, each with a line and the value that the line implies
    implied_readings: tuple[tuple[str, LinePattern, Any], ...] = ()
    #: kinds of kernels, each with a line whose first group is the kernel's name
    kernels: tuple[tuple[str, LinePattern], ...] = ()
    #: kinds in the kernel path whose name is the value of a reading: (kind, reading)
    kernel_readings: tuple[tuple[str, str], ...] = ()
    #: pattern of kernels that read quantized weights but compute in 16 bits, and the cost of that as a clause
    weight_only: tuple[re.Pattern[str], str] = (re.compile(r"(?!)"), "")
    #: comparison of flags with resolved settings
    resolution: ResolutionRules = ResolutionRules()
    #: readings whose value is the seconds between two lines
    spans: tuple[tuple[str, LinePattern, LinePattern], ...] = ()
    #: readings whose lines are summed, such as a buffer size for each device
    summed_readings: frozenset[str] = frozenset()
    #: parsers of readings, by name; other readings are text
    value_parsers: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    #: (value, source) of readings that have the same value in every start, by reading
    constant_readings: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    #: readings in addition to state.FIELDS
    extra_readings: tuple[str, ...] = ()
    #: lines that are shown to the user
    warnings: tuple[LinePattern, ...] = ()
    #: warnings that a requested feature is not available
    unavailable_features: tuple[LinePattern, ...] = ()
    #: lines that begin the shutdown; errors after them are ignored
    shutdown_lines: tuple[LinePattern, ...] = ()
    #: like `shutdown_lines`, but only if the server was ready
    shutdown_lines_when_ready: tuple[LinePattern, ...] = ()
    #: lines that prove that the engine computes on a GPU
    gpu_lines: tuple[LinePattern, ...] = ()
    #: lines that prove that the engine computes on the CPU
    cpu_lines: tuple[LinePattern, ...] = ()
    #: needle of lines that are not truncated before they are parsed
    long_line_needle: str = ""
    #: parses lines that the tables cannot describe; returns True if the tables need not be applied
    hook: Callable[[EngineState, str], bool] = _ignore_line
    #: lines for `hook`
    hook_lines: tuple[LinePattern, ...] = ()
    #: returns the settings in a line that dumps the whole configuration; None for any other line
    parse_settings: Callable[[str], Mapping[str, str] | None] = _no_settings
    #: names of a flag's setting in that dump, if they differ from the flag's name
    setting_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def line_filter(self) -> LineFilter:
        """The filter for lines that the tables may match."""
        return LineFilter(
            (row.needle for row in self.line_patterns()),
            self.noise,
            CONTINUATION_WINDOWS if self.has_tracebacks else (),
        )

    @cached_property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.stages)

    def is_start_line(self, line: str) -> bool:
        """Return True if a line begins a start of this engine; never for a line of another engine."""
        rows = (*self.banners, self.arguments_line, *self.refusals, *self.later_refusals)
        return any(row.match(line) for row in rows)

    def line_patterns(self) -> Iterator[LinePattern]:
        """Yield all kinds of lines in the tables, except those for the GPU and the CPU."""
        yield from (*self.banners, self.arguments_line, *self.refusals, *self.later_refusals, *self.hook_lines)
        yield from (row for _, rows in self.stages for row in rows)
        yield from (row for _, row in (*self.reading_lines, *self.kernels))
        yield from (row for _, row, _ in self.implied_readings)
        yield from (row for _, *rows in self.spans for row in rows)
        yield from (*self.warnings, *self.unavailable_features, *self.shutdown_lines, *self.shutdown_lines_when_ready)
        yield from (failure.line for failure in self.failures)
        if self.shards_line is not None:
            yield self.shards_line


class LineFilter:
    """A filter for lines that contain a needle and no noise.

    Needles that begin with a capital letter are found with one regular expression, since few positions in a log line can begin
    such a needle. The others could begin at nearly every position, so each is first searched for in a whole block.

    windows: strings, each with the number of following lines that pass the filter without a needle.
    """

    def __init__(self, needles: Iterable[str], noise: Sequence[str], windows: Sequence[tuple[str, int]] = ()) -> None:
        words = sorted({*needles, *(word for word, _ in windows)})
        self._windows = [(word.encode(), line_count) for word, line_count in windows]
        self._noise = (noise[0].encode(), noise[1].encode(), noise[2].encode())
        self._capital = _compile_alternatives(word for word in words if word[0].isupper())
        self._common = [word.encode() for word in words if not word[0].isupper()]

    def is_noise(self, line: bytes) -> bool:
        """Return True if a line is uninformative, even if it contains a needle."""
        first, second, third = self._noise  # no loop, because this is called a million times
        return first in line or second in line or third in line

    def matches_line(self, line: bytes) -> bool:
        """Return True if a line contains a needle."""
        return bool(self._capital.search(line)) or any(word in line for word in self._common)

    def lines_after(self, line: bytes) -> int:
        """Return the number of lines after this one that pass the filter without a needle."""
        return max((line_count for word, line_count in self._windows if word in line), default=0)

    def filter_block(self, block: bytes, line_bytes: int) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Return the lines of a block that contain a needle, numbered from 0, and all lines that are not noise.

        line_bytes: maximum length; longer lines are truncated.
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
        present_words = [word for word in self._common if word in text]
        search = self._capital.search
        candidates = [
            (index, line[:line_bytes])
            for index, line in enumerate(lines)
            if search(line) or (present_words and any(word in line for word in present_words))
        ]
        return candidates, lines

    def opens_window(self, block: bytes) -> bool:
        """Return True if a line of this block lets following lines pass."""
        return any(word in block for word, _ in self._windows)


def _compile_alternatives(words: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern for any of the words, grouped by first character, so that most positions are ruled out at once."""
    endings: dict[str, set[str]] = {}
    for word in words:
        endings.setdefault(word[0], set()).add(word[1:])
    groups = (f"{re.escape(first)}(?:{'|'.join(map(re.escape, sorted(ends)))})" for first, ends in endings.items())
    return re.compile("|".join(groups).encode())

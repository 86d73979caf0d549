"""The format of an engine's log as data: the tables by which `reader` reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparkwright.engines.log.failure_collector import CONTINUATION_WINDOWS, FailurePattern
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import Line


def _read_nothing(state: EngineState, line: str) -> bool:
    return False


def _no_settings(line: str) -> None:
    return None


@dataclass(frozen=True)
class Resolution:
    """One engine's table to compare a command line's flags with the settings that the engine resolved them to."""

    #: flags whose resolved value is a reading of the log: it outranks the dump, since it may be printed later
    readings: Mapping[str, str] = field(default_factory=dict)
    #: flags that choose a kernel: by name, the kind of kernels that the log names
    kernels: Mapping[str, str] = field(default_factory=dict)
    #: flags that are not compared: names, paths, and values that the engine rounds by design
    ignored: frozenset[str] = frozenset()
    #: switches that turn a setting off: by name, the reading that they turn off
    turns_off: Mapping[str, str] = field(default_factory=dict)
    #: values that are the same, or that the engine refines without a loss
    same: tuple[frozenset[str], ...] = ()
    #: parts of a kernel's printed name that do not identify it
    trimmed: re.Pattern[str] = re.compile(r"(?!)")
    #: reads a flag's value as the engine does, "128k" as 128000; by name
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LogFormat:
    """The format of one engine's log."""

    #: lines with one of these hold no information, and there may be a million of them
    noise: tuple[str, str, str]
    #: line that begins a start, unless a banner did
    arguments: Line
    #: in their order, each with the lines that begin it; the last is ready
    stages: tuple[tuple[str, tuple[Line, ...]], ...]
    failures: tuple[FailurePattern, ...]
    #: lines that are never failures
    harmless: re.Pattern[str]
    #: the source, time and place before a line's message
    prefix: re.Pattern[str]
    #: see text.parse_time
    clock: re.Pattern[str]
    #: the engine is a Python program: exceptions are read whole, whatever their class
    tracebacks: bool = False
    #: exceptions that only follow from another process's end
    consequences: re.Pattern[str] = re.compile(r"(?!)")
    #: the process that answers requests, whose exceptions may be a request's own
    front: str = ""
    #: settings that may explain a failure without a known cause, each with its sentence
    suspects: tuple[tuple[str, str], ...] = ()
    banners: tuple[Line, ...] = ()
    #: lines that begin a start that ends at once
    refusals: tuple[Line, ...] = ()
    #: the same, only if a start came before
    refused: tuple[Line, ...] = ()
    #: line with the number of shards loaded and the number of all
    shards: Line | None = None
    #: readings, each from its line's first group
    values: tuple[tuple[str, Line], ...] = ()
    #: readings with a fixed value, implied by a line
    fixed: tuple[tuple[str, Line, Any], ...] = ()
    #: kinds of kernels, each with a line whose first group names the kernel in use
    kernels: tuple[tuple[str, Line], ...] = ()
    #: readings that are part of the kernel path: its kind, and the reading
    kernel_readings: tuple[tuple[str, str], ...] = ()
    #: names of kernels that read quantized weights and compute in 16 bits, and what that costs
    weight_only: tuple[re.Pattern[str], str] = (re.compile(r"(?!)"), "")
    #: comparison of flags with the settings that the engine resolved them to
    resolution: Resolution = Resolution()
    #: readings that are the seconds between two lines
    spans: tuple[tuple[str, Line, Line], ...] = ()
    #: readings that are the sum of the lines that name them: a cache in parts, a buffer of each device
    summed: frozenset[str] = frozenset()
    #: types of readings; the others are text
    types: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    #: readings that are always true of this engine, each with its source
    always: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    #: readings beyond state.FIELDS
    also: tuple[str, ...] = ()
    #: lines that a person should see
    warnings: tuple[Line, ...] = ()
    #: warnings that a requested feature is not served
    unmet: tuple[Line, ...] = ()
    #: lines that begin the shutdown; errors after them are part of it
    stopping: tuple[Line, ...] = ()
    #: the same, for a server that was ready
    stopping_when_ready: tuple[Line, ...] = ()
    #: lines that show that the engine computes on the GPU
    on_gpu: tuple[Line, ...] = ()
    #: lines that show that the engine computes on the CPU
    on_cpu: tuple[Line, ...] = ()
    #: a needle of lines that are read in full
    uncut: str = ""
    #: reads lines that the tables can't express; returns True if the rest of the line is to be skipped
    hook: Callable[[EngineState, str], bool] = _read_nothing
    #: lines that `hook` looks for
    hooked: tuple[Line, ...] = ()
    #: returns the settings of a line that dumps the whole configuration; None for any other line
    settings: Callable[[str], Mapping[str, str] | None] = _no_settings
    #: flags that have other names in that dump
    setting_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def line_filter(self) -> LineFilter:
        """The finder of lines that one of the tables may match."""
        return LineFilter(
            (row.needle for row in self.rows()), self.noise, CONTINUATION_WINDOWS if self.tracebacks else ()
        )

    @cached_property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of a start, in their order."""
        return tuple(name for name, _ in self.stages)

    def is_start_line(self, line: str) -> bool:
        """Return True if a start of this engine, and of no other, begins with such a line, or is refused by it."""
        rows = (*self.banners, self.arguments, *self.refusals, *self.refused)
        return any(row.match(line) for row in rows)

    def rows(self) -> Iterator[Line]:
        """Yield every line that the tables look for."""
        yield from (*self.banners, self.arguments, *self.refusals, *self.refused, *self.hooked)
        yield from (row for _, rows in self.stages for row in rows)
        yield from (row for _, row in (*self.values, *self.kernels))
        yield from (row for _, row, _ in self.fixed)
        yield from (row for _, *rows in self.spans for row in rows)
        yield from (*self.warnings, *self.unmet, *self.stopping, *self.stopping_when_ready)
        yield from (failure.line for failure in self.failures)
        if self.shards is not None:
            yield self.shards


class LineFilter:
    """Literals of which a line must hold one, and noise of which it must hold none.

    Needles that begin with a capital are found in one pass over a line, for few places of a log line can begin one. The others
    would be tried at nearly every place, so each is searched for in a whole block first.

    windows: words, each with the number of following lines that are worth parsing, whatever they hold.
    """

    def __init__(self, needles: Iterable[str], noise: Sequence[str], windows: Sequence[tuple[str, int]] = ()) -> None:
        words = sorted({*needles, *(word for word, _ in windows)})
        self._windows = [(word.encode(), lines) for word, lines in windows]
        self._noise = (noise[0].encode(), noise[1].encode(), noise[2].encode())
        self._capital = _compile_alternatives(word for word in words if word[0].isupper())
        self._common = [word.encode() for word in words if not word[0].isupper()]

    def is_noise(self, line: bytes) -> bool:
        """Return True if a line holds no information, whatever else is in it."""
        first, second, third = self._noise  # without a loop: called a million times
        return first in line or second in line or third in line

    def matches_line(self, line: bytes) -> bool:
        """Return True if a line may be worth parsing."""
        return bool(self._capital.search(line)) or any(word in line for word in self._common)

    def lines_after(self, line: bytes) -> int:
        """Return the number of lines after this one that are worth parsing."""
        return max((lines for word, lines in self._windows if word in line), default=0)

    def filter_block(self, block: bytes, line_bytes: int) -> tuple[list[tuple[int, bytes]], list[bytes]]:
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
        present_words = [word for word in self._common if word in text]
        search = self._capital.search
        candidates = [
            (index, line[:line_bytes])
            for index, line in enumerate(lines)
            if search(line) or (present_words and any(word in line for word in present_words))
        ]
        return candidates, lines

    def opens_window(self, block: bytes) -> bool:
        """Return True if lines after one in this block may be worth parsing."""
        return any(word in block for word, _ in self._windows)


def _compile_alternatives(words: Iterable[str]) -> re.Pattern[bytes]:
    """Return one pattern for many words, grouped by their first character, which rules out most places at once."""
    groups: dict[str, set[str]] = {}
    for word in words:
        groups.setdefault(word[0], set()).add(word[1:])
    alternatives = {first: "|".join(map(re.escape, sorted(ends))) for first, ends in groups.items()}
    grouped = (f"{re.escape(first)}(?:{ends})" for first, ends in alternatives.items())
    return re.compile("|".join(grouped).encode())

"""What an engine's log looks like, as data: the tables by which `reader` reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparkwright.engines.log.exceptions import WINDOWS
from sparkwright.engines.log.last_words import Death
from sparkwright.engines.log.line import Line
from sparkwright.engines.log.needles import Needles
from sparkwright.engines.log.resolution import Resolution
from sparkwright.engines.log.state import EngineState


def _nothing(state: EngineState, line: str) -> bool:
    return False


def _no_settings(line: str) -> None:
    return None


@dataclass(frozen=True)
class LogBook:
    """One engine's log.

    noise: lines with one of these tell nothing, and may be a million. arguments: begins a start, unless a banner did. refusals:
    begin a start that ends there. refused: the same, where another start is known before it. stages: in their order, with
    the lines that begin each; the last is ready. shards: how many of how many are loaded. values: a reading, from a
    line's first group. fixed: a reading that a line stands for. spans: seconds between two lines. types: of readings; the others
    are words. always: what this engine can't be without, and where that is known from. also: readings beside
    state.FIELDS. warnings: what a person should see; unmet: of them, what says that something that was asked is not served.
    stopping: from here on, errors too are part of stopping; stopping_when_ready: the same, of a server that was ready.
    harmless: lines that are never last words. prefix: who says it, when and where. clock: see values.clock. on_gpu, on_cpu: of
    the device that it computes on. uncut: a needle of lines that are read to their end. hook: for what tables can't say;
    given the state and a line, it keeps readings; True when nothing else of this line is to be read. hooked:
    the lines that it looks for. settings: of a line that dumps the whole configuration, all that it holds; None for another.
    setting_names: flags that have another name there.
    """

    noise: tuple[str, str, str]
    arguments: Line
    stages: tuple[tuple[str, tuple[Line, ...]], ...]
    failures: tuple[Death, ...]
    harmless: re.Pattern[str]
    prefix: re.Pattern[str]
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
    refusals: tuple[Line, ...] = ()
    refused: tuple[Line, ...] = ()
    shards: Line | None = None
    values: tuple[tuple[str, Line], ...] = ()
    fixed: tuple[tuple[str, Line, Any], ...] = ()
    #: kinds of kernels, each with a line whose first group names the one that computes
    kernels: tuple[tuple[str, Line], ...] = ()
    #: readings that are part of the kernel path: its kind, and the reading
    kernel_readings: tuple[tuple[str, str], ...] = ()
    #: names of kernels that read quantized weights and compute in 16 bits, and what that costs
    weight_only: tuple[re.Pattern[str], str] = (re.compile(r"(?!)"), "")
    #: how flags are compared with what the engine resolved them to
    resolution: Resolution = Resolution()
    spans: tuple[tuple[str, Line, Line], ...] = ()
    #: readings that are the sum of the lines that name them: a cache in parts, a buffer of each device
    summed: frozenset[str] = frozenset()
    types: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    always: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    warnings: tuple[Line, ...] = ()
    unmet: tuple[Line, ...] = ()
    stopping: tuple[Line, ...] = ()
    stopping_when_ready: tuple[Line, ...] = ()
    on_gpu: tuple[Line, ...] = ()
    on_cpu: tuple[Line, ...] = ()
    uncut: str = ""
    hook: Callable[[EngineState, str], bool] = _nothing
    hooked: tuple[Line, ...] = ()
    settings: Callable[[str], Mapping[str, str] | None] = _no_settings
    setting_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def needles(self) -> Needles:
        """Finds the lines that one of the tables may match."""
        return Needles((row.needle for row in self.rows()), self.noise, WINDOWS if self.tracebacks else ())

    @cached_property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of a start, in their order."""
        return tuple(name for name, _ in self.stages)

    def begins(self, line: str) -> bool:
        """Whether a start of this engine, and of no other, begins or refuses to begin with such a line."""
        rows = (*self.banners, self.arguments, *self.refusals, *self.refused)
        return any(row.match(line) for row in rows)

    def rows(self) -> Iterator[Line]:
        """Every line that the tables look for."""
        yield from (*self.banners, self.arguments, *self.refusals, *self.refused, *self.hooked)
        yield from (row for _, rows in self.stages for row in rows)
        yield from (row for _, row in (*self.values, *self.kernels))
        yield from (row for _, row, _ in self.fixed)
        yield from (row for _, *rows in self.spans for row in rows)
        yield from (*self.warnings, *self.unmet, *self.stopping, *self.stopping_when_ready)
        yield from (death.line for death in self.failures)
        if self.shards is not None:
            yield self.shards

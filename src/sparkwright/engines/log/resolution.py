"""Comparison of a command line's flags with the settings and kernels that the engine resolved them to.

The engine's own output is compared: its settings dump, and the lines after it. A flag that appears in neither is not compared,
and proves nothing. Values that leave the choice to the engine ("auto", -1) match any result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.engines.log import dump

if TYPE_CHECKING:
    from sparkwright.engines.engine import Engine
    from sparkwright.engines.log.book import LogBook
    from sparkwright.engines.log.state import EngineState

#: values with which a flag leaves the choice to the engine
OPEN = frozenset(("auto", "none", "default", "-1", ""))
SHOWN_CHARS = 80


def _plain(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Resolution:
    """One engine's table for the comparison."""

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


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A flag that the engine resolved to another value than the command line sets."""

    flag: str
    requested: str
    resolved: str
    evidence: str  # the line of the log

    @property
    def sentence(self) -> str:
        """The difference in words."""
        return f"{self.flag} {self.requested} was requested, the engine resolved it to {self.resolved}"


def mismatches(
    flags: Mapping[str, Any], state: EngineState, settings: Mapping[str, str], engine: Engine
) -> list[Mismatch]:
    """Return the flags that an engine resolved to another value than requested.

    Args:
        flags: of the running command, by their own names; a JSON flag as its value.
        state: the log of this start.
        settings: the dump of this start, empty if there is none.
        engine: that wrote the log.
    """
    table = engine.log.resolution
    found: list[Mismatch] = []
    for name, requested in flags.items():
        if name not in table.ignored:
            found += _of_flag(name, table.values.get(name, _plain)(requested), state, settings, engine)
    return found


def _of_flag(
    name: str, requested: Any, state: EngineState, settings: Mapping[str, str], engine: Engine
) -> Iterator[Mismatch]:
    table = engine.log.resolution
    if name in table.kernels:
        yield from _of_kernel(name, requested, state, table)
        return
    reading = state.reading(table.readings.get(name) or table.turns_off.get(name, ""))
    if reading.value is not None:
        resolved: dump.Nested = str(reading.value)
        requested = not requested if name in table.turns_off and isinstance(requested, bool) else requested
        yield from _compared(name, requested, resolved, reading.evidence, table)
        return
    for setting in engine.log.setting_names.get(name, (name.replace("-", "_"),)):
        if setting in settings:
            resolved = dump.nested(settings[setting])
            yield from _compared(name, requested, resolved, f"{setting}={settings[setting]}", table)
            return


def _of_kernel(name: str, requested: Any, state: EngineState, table: Resolution) -> Iterator[Mismatch]:
    """Yield a mismatch if no line of its kind names the requested kernel: a draft model may use another one."""
    resolved = state.kernels.get(table.kernels[name], {})
    wanted = _letters(str(requested))
    if not resolved or str(requested).casefold() in OPEN:
        return
    if any(_letters(table.trimmed.sub("", kernel)).startswith(wanted) for kernel in resolved):
        return
    yield Mismatch(name, str(requested), ", ".join(sorted(resolved)), next(iter(resolved.values())))


def _compared(name: str, requested: Any, resolved: dump.Nested, evidence: str, table: Resolution) -> Iterator[Mismatch]:
    if isinstance(requested, Mapping):
        if isinstance(resolved, dict):
            for key, value in requested.items():
                inner = resolved.get(str(key).replace("-", "_"))
                if inner is not None:
                    yield from _compared(f"{name}.{key}", value, inner, evidence, table)
        return
    if isinstance(resolved, dict) or (isinstance(requested, Sequence) and not isinstance(requested, str)):
        return
    if requested is None or str(requested).casefold() in OPEN or _matches(requested, dump.leaf(resolved), table):
        return
    yield Mismatch(name, _shown(requested), _shown(dump.leaf(resolved)[0]), evidence)


def _matches(requested: Any, resolved: tuple[str, ...], table: Resolution) -> bool:
    """Return True if a spelling of a resolved value is the requested one, or their types cannot be compared."""
    if isinstance(requested, bool):
        words = {word.casefold() for word in resolved}
        return not words & {"true", "false"} or str(requested).casefold() in words
    if isinstance(requested, int | float):
        numbers = [number for number in map(_number, resolved) if number is not None]
        return not numbers or float(requested) in numbers
    wanted = str(requested).casefold().removeprefix("torch.")
    alike = next((group for group in table.same if wanted in group), frozenset((wanted,)))
    return any(word.casefold() in alike or _letters(word) == _letters(wanted) for word in resolved)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


def _shown(value: Any) -> str:
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    text = {"True": "on", "False": "off"}.get(text, text)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} ..."


# -- the kernel path ---------------------------------------------------------------------------------------------------


def kernel_path(state: EngineState, book: LogBook) -> dict[str, list[str]]:
    """Return the kernels and modes of a start, by kind; empty if its log names none."""
    path = {kind: sorted(names) for kind, names in state.kernels.items() if names}
    for kind, reading in book.kernel_readings:
        value = state.value(reading)
        if value is not None:
            path[kind] = [str(value)]
    return path


def path_sentence(path: Mapping[str, Sequence[str]]) -> str:
    """Return a kernel path in words, as "MoE MARLIN, attention FLASHINFER"."""
    return ", ".join(f"{kind} {' and '.join(names)}" for kind, names in path.items())


def weight_only(path: Mapping[str, Sequence[str]], book: LogBook) -> list[str]:
    """Return the kernels of a path that read quantized weights and compute in 16 bits."""
    pattern, _ = book.weight_only
    return [f"{kind} {name}" for kind, names in path.items() for name in names if pattern.search(name)]


def path_changes(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]], book: LogBook) -> list[str]:
    """Return the kinds of kernels that differ between two starts, as sentences; a kind that one log lacks is left out."""
    pattern, cost = book.weight_only
    changes = []
    for kind, names in now.items():
        earlier = list(before.get(kind) or ())
        if not earlier or set(earlier) == set(names):
            continue
        worse = any(map(pattern.search, names)) and not any(map(pattern.search, earlier))
        why = f" (weight-only: {cost})" if worse else ""
        changes.append(f"{kind} {' and '.join(names)} instead of {' and '.join(earlier)}{why}")
    return changes

"""Options of an engine by release, replacements of removed options, and flags that mean the same in several engines.

`option_history.json` in an engine's folder lists the examined releases, oldest first, and a row for each option that some of
them lack: KIND FIRST..LAST -> SUCCESSOR. FIRST and LAST are the oldest and the newest release with the option; FIRST is empty if
the oldest examined release has it, LAST if the newest does. SUCCESSOR is its replacement according to the engine or to
`successors` in its options.json. `make engine-release` writes the file from the parsers of the releases.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sparkwright.engines.findings import Fix

#: `Span.successor` of an option that was removed without a successor
NO_SUCCESSOR = "nothing"
#: prefixes that switch an option on or off
SWITCH_PREFIXES = ("no-", "disable-", "enable-")
#: minimum similarity of a mistyped name to an option, as in difflib
MIN_SIMILARITY = 0.85
#: TensorRT-LLM, which sparkwright treats as a generic OpenAI-compatible server
TRTLLM = "trtllm"
#: display names of the engines that concepts.json covers
TITLES: Mapping[str, str] = {"vllm": "vLLM", "llama_cpp": "llama.cpp", "sglang": "SGLang", TRTLLM: "TensorRT-LLM"}
#: flags whose values have another meaning than those of the corresponding flags of other engines
FLAGS_WITH_OTHER_VALUES = frozenset(
    ("chunked-prefill-size", "disable-radix-cache", "reasoning-format", "cache-type-k", "ctx-size")
)


@dataclass(frozen=True, slots=True)
class Span:
    """The range of releases that have an option, as indexes of `OptionHistory.releases`."""

    kind: str
    #: None if the oldest release has it
    first: int | None
    #: None if the newest release has it
    last: int | None
    #: replacement: NAME, NAME=VALUE, NAME=VALUE_IF_ON|VALUE_IF_OFF or NO_SUCCESSOR; "" if unknown
    successor: str = ""


@dataclass(frozen=True, slots=True)
class Existence:
    """The existence of an option in a release."""

    #: None if unknown
    exists: bool | None
    #: reason as a clause; "" for an option that exists
    reason: str = ""
    #: the option was added in a later release
    is_newer: bool = False


@dataclass(frozen=True)
class Replacement:
    """An option that replaces another one."""

    name: str
    #: None if it cannot be derived from the other option's value
    value: Any = None


class OptionHistory:
    """The options of an engine in each examined release."""

    def __init__(
        self,
        table: Path,
        newest_names: Callable[[], Collection[str]],
        order: Callable[[str], Any],
        values: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """Store the path of a table, which is read on first use.

        Args:
            table: path of the engine's option_history.json.
            newest_names: returns the names of the newest release's options; a mapping if their kinds are known.
            order: sort key for releases.
            values: values that changed with a rename: (old name, old value) to the new value.
        """
        self._path, self.newest_names, self._order, self._values = table, newest_names, order, values or {}

    @cached_property
    def _table(self) -> Mapping[str, Any]:
        table: Mapping[str, Any] = json.loads(self._path.read_bytes())
        return table

    @cached_property
    def releases(self) -> tuple[str, ...]:
        """The examined releases, oldest first."""
        return tuple(self._table["releases"])

    @cached_property
    def spans(self) -> Mapping[str, Span]:
        """The spans of the options that some release lacks, by name."""
        return {name: self._parse_span(row) for name, row in self._table["options"].items()}

    def removed_kinds(self) -> Mapping[str, str]:
        """Return the kinds of the removed options, by name."""
        return {name: span.kind for name, span in self.spans.items() if span.last is not None}

    def existence(self, name: str, release: str | None) -> Existence:
        """Return whether a release has an option. release: None if unknown."""
        span = self.spans.get(name)
        if span is None:
            return self._existence_without_row(name, release)
        if release is None:
            return Existence(None, self._describe_removal(span)) if span.last is not None else Existence(True)
        current = self._order(release)
        # the table does not show which release between two examined ones changed the option
        if span.first and current < self._order(self.releases[span.first]):
            is_certain = current <= self._order(self.releases[span.first - 1])
            return Existence(
                False if is_certain else None, f"it was added in {self.releases[span.first]}", is_newer=True
            )
        if span.last is not None and current > self._order(self.releases[span.last]):
            is_certain = current >= self._order(self.releases[span.last + 1])
            return Existence(False if is_certain else None, self._describe_removal(span))
        return Existence(True)

    def replacement(self, name: str, value: Any, release: str | None) -> Replacement | None:
        """Return the replacement of an option that a release lacks; None if none is known."""
        return self._find_successor(name, value, release) or self._find_predecessor(name, value, release)

    def _existence_without_row(self, name: str, release: str | None) -> Existence:
        """Return whether a release has an option that is not in the table, because all examined releases have it or none."""
        if name in self.newest_names():
            return Existence(True)
        oldest, newest = self.releases[0], self.releases[-1]
        is_covered = release is not None and self._order(oldest) <= self._order(release) <= self._order(newest)
        return Existence(False if is_covered else None, f"no release from {oldest} to {newest} has it")

    def _describe_removal(self, span: Span) -> str:
        assert span.last is not None
        return f"it was removed in {self.releases[span.last + 1]}"

    def _find_successor(self, name: str, value: Any, release: str | None) -> Replacement | None:
        for _ in range(len(self.spans)):
            span = self.spans.get(name)
            if span is None or span.successor in ("", NO_SUCCESSOR):
                return None
            new_name, value = self._apply_rename(name, value, span.successor)
            if self.existence(new_name, release).exists is not False:
                return Replacement(new_name, value)
            name = new_name
        return None

    def _apply_rename(self, name: str, value: Any, successor: str) -> tuple[str, Any]:
        new_name, _, new_values = successor.partition("=")
        if new_values:
            value_if_on, _, value_if_off = new_values.partition("|")
            new_value = value_if_off if value is False else value_if_on
            return new_name, True if new_value == "true" else new_value or None
        takes_switch = self._kind(new_name) in ("switch", "bare", "both")
        is_same_kind = isinstance(value, bool) == takes_switch
        return new_name, self._values.get((name, str(value)), value) if is_same_kind else None

    def _find_predecessor(self, name: str, value: Any, release: str | None) -> Replacement | None:
        """Return the older name of an option that was renamed in a later release."""
        for old_name, span in self.spans.items():
            if span.successor == name and release is not None and self.existence(old_name, release).exists:
                old_values = {new: old for (renamed, old), new in self._values.items() if renamed == old_name}
                is_same_kind = self._kind(name) == span.kind
                return Replacement(old_name, old_values.get(str(value), value)) if is_same_kind else None
        return None

    def _kind(self, name: str) -> str:
        span, newest = self.spans.get(name), self.newest_names()
        if span is not None:
            return span.kind
        return newest.get(name, "") if isinstance(newest, Mapping) else ""

    def _parse_span(self, row: str) -> Span:
        kind_and_releases, _, successor = row.partition(" -> ")
        kind, releases = kind_and_releases.split()
        first, _, last = releases.partition("..")
        index = self.releases.index
        return Span(kind, index(first) if first else None, index(last) if last else None, successor)


def suggest_fix(
    history: OptionHistory, name: str, value: Any, release: str | None, known_options: Collection[str]
) -> Fix:
    """Return the fix for an option that a release lacks. known_options: names of that release's options."""
    replacement = history.replacement(name, value, release)
    if replacement is not None and replacement.name in known_options:
        change = {name: None} if replacement.value is None else {name: None, replacement.name: replacement.value}
        return Fix(_format_replacement(replacement, value), change)
    span, removal = history.spans.get(name), Fix("remove it", {name: None})
    if history.existence(name, release).is_newer or (span is not None and span.successor == NO_SUCCESSOR):
        return removal
    if span is not None and span.last is not None:
        last_release = history.releases[span.last]
        return Fix(f"see the release notes after {last_release} for its replacement", {name: None})
    return _suggest_correction(name, value, known_options) or removal


def _suggest_correction(name: str, value: Any, known_options: Collection[str]) -> Fix | None:
    """Return the correction of a mistyped or negated name; None if no known option matches."""
    if similar := find_similar(name, known_options):
        return Fix(f"write {similar}", {name: None, similar: value})
    opposite = find_opposite(name, known_options)
    if opposite and isinstance(value, bool):
        return Fix(f"write {opposite}: {str(not value).lower()}", {name: None, opposite: not value})
    return None


def _format_replacement(replacement: Replacement, value: Any) -> str:
    if replacement.value is None:
        return f"see {replacement.name}, its replacement"
    new_value = str(replacement.value).lower() if isinstance(replacement.value, bool) else replacement.value
    return f"write {replacement.name}" + ("" if replacement.value == value else f": {new_value}")


def find_similar(name: str, known_options: Collection[str]) -> str:
    """Return the known option closest to a mistyped name, excluding its opposite; "" if there is none."""
    similar = difflib.get_close_matches(name, sorted(known_options), n=8, cutoff=MIN_SIMILARITY)
    return next((option for option in similar if _direction(option) == _direction(name)), "")


def find_opposite(name: str, known_options: Collection[str]) -> str:
    """Return the known option with the opposite meaning, such as disable-x for enable-x; "" if there is none."""
    bare_name = next((name.removeprefix(prefix) for prefix in SWITCH_PREFIXES if name.startswith(prefix)), name)
    opposites = (
        (f"enable-{bare_name}", bare_name) if _direction(name) == "off" else (f"disable-{bare_name}", f"no-{bare_name}")
    )
    return next((opposite for opposite in opposites if opposite in known_options), "")


def _direction(name: str) -> str:
    return "off" if name.startswith(("no-", "disable-")) else "on" if name.startswith("enable-") else ""


# Concepts: flags of different engines with the same meaning, from concepts.json in each engine's folder. They distinguish a flag
# of another engine from a typo.
#
# Sources: the help of vLLM 0.32.0 and of llama-server b11549; SGLang 0.5.23's server_args.py; TensorRT-LLM's trtllm-serve.
# A YAML key is written with dots.


@cache
def load_concepts() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return each engine's flags by concept, the usual flag first; empty for an engine without a flag for the concept."""
    folders = {name: "openai" if name == TRTLLM else name for name in TITLES}
    files = {name: Path(__file__).parent / folder / "concepts.json" for name, folder in folders.items()}
    tables = {name: json.loads(file.read_bytes()) for name, file in files.items()}
    return {
        concept: {name: tuple(table.get(concept, ())) for name, table in tables.items()} for concept in tables["vllm"]
    }


def concept_flags(engine: str, concept: str) -> tuple[str, ...]:
    """Return an engine's flags for a concept, the usual one first."""
    return load_concepts()[concept].get(engine, ())


def find_concept(name: str) -> str:
    """Return the concept of a flag of any engine; empty if it has none."""
    normalized = _normalize(name)
    for concept, flags_by_engine in load_concepts().items():
        if any(normalized in map(_normalize, flags) for flags in flags_by_engine.values()):
            return concept
    return ""


def translate_flag(engine: str, name: str) -> str:
    """Return this engine's name for another engine's flag, if the same values have the same meaning; else empty."""
    flags = _list_counterparts(engine, name)
    return flags[0] if len(flags) == 1 and not {flags[0], name} & FLAGS_WITH_OTHER_VALUES else ""


def format_counterparts(engine: str, name: str) -> str:
    """Return this engine's flags for the concept of another engine's flag, such as "cache-type-k and cache-type-v"; may be empty."""
    return " and ".join(_list_counterparts(engine, name))


def _list_counterparts(engine: str, name: str) -> tuple[str, ...]:
    return load_concepts().get(find_concept(name), {}).get(engine, ())


def describe_owner(engine: str, name: str) -> str:
    """Return a clause about the engine that a flag belongs to, such as "max-model-len is vLLM's; llama.cpp has ctx-size for the
    longest context"; empty for a flag of this engine or an unknown flag."""
    owners = [owner for owner in TITLES if _normalize(name) in map(_normalize, _list_counterparts(owner, name))]
    if not owners or engine in owners:
        return ""
    titles = " and ".join(f"{TITLES[owner]}'s" for owner in owners)
    counterparts = format_counterparts(engine, name) or "no flag"
    return f"{name} is {titles}; {TITLES.get(engine, engine)} has {counterparts} for {find_concept(name)}"


def _normalize(name: str) -> str:
    return name.lstrip("-").replace("_", "-")

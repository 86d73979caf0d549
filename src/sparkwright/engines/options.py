"""Options of an engine by release, and the replacements of removed options.

An engine's table (`option_history.json` in its folder) has the releases whose own parser was asked, oldest first, and a row for each
option that some of them lack: KIND FIRST..LAST -> INSTEAD. FIRST and LAST are the oldest and the newest release that have it, empty
where it is older or newer than all; INSTEAD is what the engine names in its place, or the `successors` in its options.json.
`make engine-release` writes it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sparkwright.engines.findings import Way

#: the successor of an option that is known to have none
NO_SUCCESSOR = "nothing"
#: prefixes that turn an option's meaning into its opposite
OPPOSITE_PREFIXES = ("no-", "disable-", "enable-")
MIN_SIMILARITY = 0.85


@dataclass(frozen=True, slots=True)
class Span:
    """The releases that have an option, as indexes of the releases that were read."""

    kind: str
    #: None: older than all releases that were read
    first: int | None
    #: None: the newest release that was read has it
    last: int | None
    #: NAME, NAME=VALUE, NAME=VALUE_IF_ON|VALUE_IF_OFF, NO_SUCCESSOR; "" where it is not known
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Existence:
    """The answer to whether a release has an option."""

    #: None: not known
    exists: bool | None
    #: half a sentence, "" for an option that exists
    why: str = ""


@dataclass(frozen=True)
class Replacement:
    """An option to write in place of another one."""

    name: str
    #: None: its value can't be derived from the other's
    value: Any = None


class OptionHistory:
    """The options of an engine in the releases whose parser was read."""

    def __init__(
        self,
        table: Path,
        newest: Callable[[], Collection[str]],
        order: Callable[[str], Any],
        values: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """Read a table on first use.

        Args:
            table: option_history.json of the engine.
            newest: returns the names of the options that the newest release has.
            order: turns a release into something that compares as releases do.
            values: for a successor with other values: (old name, old value) to the new value.
        """
        self._path, self.newest, self._order, self._values = table, newest, order, values or {}

    @cached_property
    def _table(self) -> Mapping[str, Any]:
        table: Mapping[str, Any] = json.loads(self._path.read_bytes())
        return table

    @cached_property
    def releases(self) -> tuple[str, ...]:
        """The releases that were read, oldest first."""
        return tuple(self._table["releases"])

    @cached_property
    def spans(self) -> Mapping[str, Span]:
        """The options that some release lacks, by name."""
        return {name: self._span(row) for name, row in self._table["options"].items()}

    def kinds(self) -> Mapping[str, str]:
        """Return the kinds of the options that the newest release no longer has, by name."""
        return {name: span.kind for name, span in self.spans.items() if span.last is not None}

    def existence(self, name: str, release: str | None) -> Existence:
        """Return the existence of an option in a release. release: None while it is not known."""
        span = self.spans.get(name)
        if span is None:
            return self._existence_without_row(name, release)
        if release is None:
            return Existence(None, self._describe_removal(span)) if span.last is not None else Existence(True)
        current = self._order(release)
        if span.last is not None and current >= self._order(self.releases[span.last + 1]):
            return Existence(False, self._describe_removal(span))
        if span.first and current <= self._order(self.releases[span.first - 1]):
            return Existence(False, f"it came with {self.releases[span.first]}")
        if span.first and current < self._order(self.releases[span.first]):
            return Existence(None, f"it came with {self.releases[span.first]}")
        if span.last is not None and current > self._order(self.releases[span.last]):
            return Existence(None, self._describe_removal(span))
        return Existence(True)

    def replacement(self, name: str, value: Any, release: str | None) -> Replacement | None:
        """Return the option that a release has in place of one that it lacks; None for none, or none known."""
        return self._find_successor(name, value, release) or self._find_predecessor(name, value, release)

    def has_no_successor(self, name: str) -> bool:
        """Return True if an option is known to have been removed without a successor."""
        span = self.spans.get(name)
        return span is not None and span.instead == NO_SUCCESSOR

    def last_release(self, name: str) -> str:
        """Return the last release known to have a removed option; "" for an option that was not removed."""
        span = self.spans.get(name)
        return "" if span is None or span.last is None else self.releases[span.last]

    def _existence_without_row(self, name: str, release: str | None) -> Existence:
        """Return the existence of an option without a row: in every release, or in none."""
        if name in self.newest():
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
            if span is None or span.instead in ("", NO_SUCCESSOR):
                return None
            new, value = self._apply_rename(name, value, span.instead)
            if self.existence(new, release).exists is not False:
                return Replacement(new, value)
            name = new
        return None

    def _apply_rename(self, name: str, value: Any, instead: str) -> tuple[str, Any]:
        new, _, words = instead.partition("=")
        if words:
            on, _, off = words.partition("|")
            word = off if value is False else on
            return new, True if word == "true" else word or None
        takes_switch = self._kind(new) in ("switch", "bare", "both")
        is_same_kind = isinstance(value, bool) == takes_switch
        return new, self._values.get((name, str(value)), value) if is_same_kind else None

    def _find_predecessor(self, name: str, value: Any, release: str | None) -> Replacement | None:
        """Return the older name of an option that later got another one."""
        for old, span in self.spans.items():
            if span.instead == name and release is not None and self.existence(old, release).exists:
                old_values = {new: was for (of, was), new in self._values.items() if of == old}
                return Replacement(old, old_values.get(str(value), value)) if self._kind(name) == span.kind else None
        return None

    def _kind(self, name: str) -> str:
        span, newest = self.spans.get(name), self.newest()
        if span is not None:
            return span.kind
        return newest.get(name, "") if isinstance(newest, Mapping) else ""

    def _span(self, row: str) -> Span:
        written, _, instead = row.partition(" -> ")
        kind, releases = written.split()
        first, _, last = releases.partition("..")
        release_index = self.releases.index
        return Span(kind, release_index(first) if first else None, release_index(last) if last else None, instead)


def suggest_fix(
    history: OptionHistory, name: str, value: Any, release: str | None, known_options: Collection[str]
) -> Way:
    """Return the fix for an option that a release lacks.

    known_options: names of the options of that release.
    """
    replacement = history.replacement(name, value, release)
    if replacement is not None and replacement.name in known_options:
        change = {name: None} if replacement.value is None else {name: None, replacement.name: replacement.value}
        return Way(_format_replacement(replacement, value), change)
    if history.has_no_successor(name) or history.existence(name, release).why.startswith("it came with"):
        return Way("remove it", {name: None})
    if last := history.last_release(name):
        return Way(f"look in the notes of the releases after {last} for what took over", {name: None})
    return suggest_correction(name, value, known_options) or Way("remove it", {name: None})


def suggest_correction(name: str, value: Any, known_options: Collection[str]) -> Way | None:
    """Return the correction of a mistyped name of a known option; None if there is none."""
    if close := find_similar(name, known_options):
        return Way(f"write {close}", {name: None, close: value})
    other = find_opposite(name, known_options)
    if other and isinstance(value, bool):
        return Way(f"write {other}: {str(not value).lower()}", {name: None, other: not value})
    return None


def _format_replacement(replacement: Replacement, value: Any) -> str:
    if replacement.value is None:
        return f"see {replacement.name}, which took over"
    same = replacement.value == value
    shown = str(replacement.value).lower() if isinstance(replacement.value, bool) else replacement.value
    return f"write {replacement.name}" if same else f"write {replacement.name}: {shown}"


def find_similar(name: str, known_options: Collection[str]) -> str:
    """Return the option that a mistyped name is close to; "" if none is. An option with the opposite meaning is never close."""
    close = difflib.get_close_matches(name, sorted(known_options), n=8, cutoff=MIN_SIMILARITY)
    return next((option for option in close if _direction(option) == _direction(name)), "")


def find_opposite(name: str, known_options: Collection[str]) -> str:
    """Return the option with the opposite meaning, as disable-x for enable-x; "" if there is none."""
    bare = _bare_name(name)
    return next((other for other in _list_opposites(name, bare) if other in known_options), "")


def _list_opposites(name: str, bare: str) -> Iterator[str]:
    if _direction(name) == "off":
        yield from (f"enable-{bare}", bare)
    else:
        yield from (f"disable-{bare}", f"no-{bare}")


def _bare_name(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in OPPOSITE_PREFIXES if name.startswith(prefix)), name)


def _direction(name: str) -> str:
    return "off" if name.startswith(("no-", "disable-")) else "on" if name.startswith("enable-") else ""


# Flags of different engines with the same meaning (concepts.json in an engine's folder), to tell a flag of another engine from a
# typing error.
#
# Sources: the help of vLLM 0.32.0 and of llama-server b11549; SGLang 0.5.23's server_args.py; TensorRT-LLM's trtllm-
# serve. A YAML key is written with dots.

#: TensorRT-LLM, which is served as an OpenAI-compatible server
TRTLLM = "trtllm"
TITLES: Mapping[str, str] = {"vllm": "vLLM", "llama_cpp": "llama.cpp", "sglang": "SGLang", TRTLLM: "TensorRT-LLM"}
#: flags with another meaning of values than their counterparts
DIFFERENT_VALUES = frozenset(
    ("chunked-prefill-size", "disable-radix-cache", "reasoning-format", "cache-type-k", "ctx-size")
)


@cache
def load_concepts() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the engines' flags by concept, the usual one first; none where an engine has no flag for it."""
    folders = {name: "openai" if name == TRTLLM else name for name in TITLES}
    files = {name: Path(__file__).parent / folder / "concepts.json" for name, folder in folders.items()}
    tables = {name: json.loads(file.read_bytes()) for name, file in files.items()}
    return {
        concept: {name: tuple(table.get(concept, ())) for name, table in tables.items()} for concept in tables["vllm"]
    }


def concept_flags(engine: str, concept: str) -> tuple[str, ...]:
    """Return an engine's flags for a concept, the usual one first; none for an engine that has none."""
    return load_concepts()[concept].get(engine, ())


def find_concept(name: str) -> str:
    """Return the concept of a flag of any engine; empty for none."""
    normalized = _normalize(name)
    return next(
        (
            concept
            for concept, row in load_concepts().items()
            if any(normalized in map(_normalize, pair) for pair in row.values())
        ),
        "",
    )


def list_owners(name: str) -> list[str]:
    """Return the engines with a flag of this name, in the order of TITLES."""
    row = load_concepts().get(find_concept(name), {})
    return [engine for engine in TITLES if _normalize(name) in map(_normalize, row.get(engine, ()))]


def translate_flag(engine: str, name: str) -> str:
    """Return this engine's name for a flag of another engine, if the same value means the same; empty for none."""
    own_flags = load_concepts().get(find_concept(name), {}).get(engine, ())
    return own_flags[0] if len(own_flags) == 1 and not {own_flags[0], name} & DIFFERENT_VALUES else ""


def format_counterparts(engine: str, name: str) -> str:
    """Return this engine's flags for the concept of another engine's flag, as "cache-type-k and cache-type-v"; empty for none."""
    return " and ".join(load_concepts().get(find_concept(name), {}).get(engine, ()))


def describe_owner(engine: str, name: str) -> str:
    """Return the owner of a flag and this engine's counterpart, as half a sentence; empty for a flag of this engine or of none.

    Example: "max-model-len is vLLM's; llama.cpp has ctx-size for the longest context".
    """
    owning_engines, concept = list_owners(name), find_concept(name)
    if not owning_engines or engine in owning_engines:
        return ""
    own = format_counterparts(engine, name)
    owner_titles = " and ".join(f"{TITLES[item]}'s" for item in owning_engines)
    has = f"has {own} for {concept}" if own else f"has no flag for {concept}"
    return f"{name} is {owner_titles}; {TITLES.get(engine, engine)} {has}"


def _normalize(name: str) -> str:
    return name.lstrip("-").replace("_", "-")

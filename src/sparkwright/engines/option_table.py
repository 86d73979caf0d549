"""The options of an engine's newest known release (options.json in its folder, a row an option), and the checks of their values."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparkwright.engines.options import OptionHistory
from sparkwright.visible import one_line

MAX_SHOWN_CHARS = 60
#: kinds of options that need no word after them
SWITCH_KINDS = ("switch", "bare", "both")
LIMIT_OPERATORS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    ">=": (operator.ge, "at least"),
    "<=": (operator.le, "at most"),
    ">": (operator.gt, "above"),
    "<": (operator.lt, "below"),
}
#: readers of a word by the kind of its option, which raise ValueError, each with the name of what it reads
Readers = Mapping[str, tuple[Callable[[str], Any], str]]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of an engine. Rows of the table leave out what an option does not have."""

    #: as the engine's flags.py explains it; "" if not known
    kind: str
    #: the full list of allowed values; empty: anything
    choices: tuple[str, ...] = ()
    #: allowed values to which a plugin may add; empty: anything
    names: tuple[str, ...] = ()
    #: the flag that loads the plugin
    plugin: str = ""
    #: its own name
    name: str = ""
    #: all words for it, its long name first; of a switch, those that turn it on
    words: tuple[str, ...] = ()
    #: all words that turn it off
    off: tuple[str, ...] = ()
    #: ranges of a number, as ">0 <=1"; a message names all limits of the range that a value is outside of
    limits: tuple[str, ...] = ()
    #: the oldest release that was found to have these limits, and the class of its settings that has them
    since: str = ""
    source: str = ""
    #: the environment variable with the same effect
    variable: str = ""
    #: the help lists its `names`
    listed: bool = False
    #: the parser also takes its choices with capitals and dashes
    folded: bool = False

    @property
    def takes_many(self) -> bool:
        """True if the option takes more than one word."""
        return self.kind.endswith(("+", "repeated"))

    def describe_violation(self, value: Any) -> str:
        """Return the range that a number is outside of, as "must be above 0 and at most 1"; "" if it is in all, or no number."""
        for limits in self.limits if isinstance(value, int | float) else ():
            if not all(is_within_limit(value, limit) for limit in limits.split()):
                return f"must be {' and '.join(map(_describe_limit, limits.split()))}"
        return ""


class OptionTable:
    """The options of an engine, and their names in recipes and commands."""

    def __init__(
        self,
        folder: Path,
        order: Callable[[str], Any],
        negatable: str = "",
        values: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """Read the tables of an engine's folder on first use.

        Args:
            folder: of the engine.
            order: turns a release into something that compares as releases do.
            negatable: kind of the switches in its history that `--no-x` turns off.
            values: see OptionHistory.
        """
        self._folder, self._negatable = folder, negatable
        self.history = OptionHistory(folder / "option_history.json", lambda: self._kinds, order, values)

    @cached_property
    def _table(self) -> Mapping[str, Any]:
        table: Mapping[str, Any] = json.loads((self._folder / "options.json").read_bytes())
        return table

    @property
    def release(self) -> str:
        """The release of the options."""
        return str(self._table["release"])

    @cached_property
    def newest(self) -> Mapping[str, Option]:
        """The options of the release, by their own names."""
        return _build_options(self._table["options"])

    @cached_property
    def known(self) -> Mapping[str, Option]:
        """The options of every release that was read, by their own names."""
        newest_words = {word for option in self.newest.values() for word in option.words}
        others = {
            name: {"kind": span.kind, "off": [f"--no-{name}"] if span.kind == self._negatable else []}
            for name, span in self.history.spans.items()
            if f"--{name}" not in newest_words
        }
        return {**_build_options(others), **_build_options(self._table.get("gone", {})), **self.newest}

    @cached_property
    def by_word(self) -> Mapping[str, tuple[Option, bool]]:
        """The option of each word (without dashes), and True if the word turns it off."""
        options: dict[str, tuple[Option, bool]] = {}
        for option in self.known.values():
            options |= {word.lstrip("-"): (option, False) for word in option.words}
            options |= {word.lstrip("-"): (option, True) for word in option.off}
        return options

    @cached_property
    def _kinds(self) -> Mapping[str, str]:
        return {name: option.kind for name, option in self.newest.items()}

    def normalize(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags under their own names, in their order; of two spellings of a flag the last wins.

        A flag's own name has dashes, none in front; `no-x: true` becomes `x: false`. An unknown name stays, with dashes.
        """
        return dict(self._normalize(name, given) for name, given in written.items())

    def canonical(self, written: str) -> str:
        """Return a flag's own name; for the off side of a switch, the name of the switch."""
        return self._normalize(written, True)[0]

    def _normalize(self, written: str, given: Any) -> tuple[str, Any]:
        plain = written.lstrip("-").replace("_", "-")
        option, off = self.by_word.get(plain, (None, False))
        if option is None:
            return plain, given
        return option.name, (not given if off and isinstance(given, bool) else given)


class ListedOptions:
    """The options that an image lists, each with its shape, stored as the difference from those of the known release."""

    def __init__(self, like: str, usual: Callable[[], Mapping[str, str]]) -> None:
        """Compare with the options of a release. usual: returns their shapes by name."""
        self._like, self._usual = like, usual

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return the difference from the usual shapes: {"like": RELEASE, "differ": {name: shape, or None if it is gone}}."""
        usual = self._usual()
        gone: dict[str, str | None] = dict.fromkeys(name for name in usual if name not in shapes)
        new = {name: shape for name, shape in shapes.items() if usual.get(name) != shape}
        return {"like": self._like, "differ": {**gone, **new}}

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return True if `restore_options` can use the stored difference, or the image listed no options; else run the image again."""
        return difference is None or difference.get("like") == self._like

    def restore_options(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the shapes from a stored difference; empty if none was stored, or the release it refers to is no longer known
        here."""
        if difference is None or not self.is_current(difference):
            return {}
        return {name: shape for name, shape in {**self._usual(), **difference["differ"]}.items() if shape}


def format_word(value: Any) -> str:
    """Return the word for a single value."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list | tuple) else str(value)


def format_value(value: Any) -> str:
    """Return a value as messages have it."""
    return f"got {one_line(repr(value), max_chars=MAX_SHOWN_CHARS)}"


def find_value_problem(
    option: Option, value: Any, readers: Readers, word: Callable[[Any], str], *, as_word: bool = False
) -> str:
    """Return the problem with a value, as "must be a whole number, got '128q'"; "" if nothing is known against it.

    Args:
        word: returns the word for a single value.
        as_word: show a value as the engine gets it, instead of as the recipe has it.
    """
    if value is None:
        return ""
    if option.kind in SWITCH_KINDS:
        return "" if isinstance(value, bool) else f"is a switch and takes no value, {format_value(value)}"
    if isinstance(value, bool) and option.kind != "on":
        return f"needs a value, got {str(value).lower()}"
    is_list = isinstance(value, list | tuple)
    if option.kind == "two":
        if not is_list or len(value) != 2:
            return f"takes two values, {format_value(value)}"
        problems = (_find_word_problem(option, word(item), format_value(word(item)), readers) for item in value)
        return next(filter(None, problems), "")
    if is_list and option.kind not in ("list", "text", "json"):
        return f"takes one value, {format_value(value)}"
    return _find_word_problem(option, word(value), format_value(word(value) if as_word else value), readers)


def _find_word_problem(option: Option, word: str, shown_value: str, readers: Readers) -> str:
    read, name = readers.get(option.kind, (str, "text"))
    try:
        value = read(word)
    except (ValueError, RecursionError):
        return f"must be {name}, {shown_value}"
    if option.choices and value not in option.choices:
        return f"must be one of {', '.join(option.choices)}, {shown_value}"
    violation = option.describe_violation(value)
    return violation and f"{violation}, {shown_value}"


def is_within_limit(value: float, limit: str) -> bool:
    """Return True if a number is within a limit, as ">=1"."""
    edge = limit.lstrip("<>=")
    return LIMIT_OPERATORS[limit.removesuffix(edge)][0](value, float(edge))


def _describe_limit(limit: str) -> str:
    edge = limit.lstrip("<>=")
    return f"{LIMIT_OPERATORS[limit.removesuffix(edge)][1]} {edge}"


def _build_options(rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Option]:
    return {name: _build_option(name, row) for name, row in rows.items()}


def _build_option(name: str, row: Mapping[str, Any]) -> Option:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Option(**{**fields, "name": name, "words": (f"--{name}", *fields.get("words", ()))})

"""The options of an engine's newest known release, from options.json in its folder, and the validation of their values."""

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
#: kinds of options without a value
SWITCH_KINDS = ("switch", "bare", "both")
LIMIT_OPERATORS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    ">=": (operator.ge, "at least"),
    "<=": (operator.le, "at most"),
    ">": (operator.gt, "above"),
    "<": (operator.lt, "below"),
}
#: for each kind of option, a parser that raises ValueError, and a description of valid words, such as "a whole number"
ValueParsers = Mapping[str, tuple[Callable[[str], Any], str]]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of an engine: a row of options.json, which omits defaults."""

    #: one of the kinds in the engine's flags.py; "" if unknown
    kind: str
    #: all allowed values; empty if the option takes any value
    choices: tuple[str, ...] = ()
    #: allowed values, which a plugin may extend; empty if the option takes any value
    names: tuple[str, ...] = ()
    #: the flag that loads the plugin
    plugin: str = ""
    #: canonical name
    name: str = ""
    #: all spellings, the long name first; for a switch, the spellings that turn it on
    words: tuple[str, ...] = ()
    #: spellings that turn a switch off
    off: tuple[str, ...] = ()
    #: allowed ranges of a number, each written as ">0 <=1"
    limits: tuple[str, ...] = ()
    #: the oldest release known to have these limits
    since: str = ""
    #: the engine's class with these limits
    source: str = ""
    #: the environment variable with the same effect
    variable: str = ""
    #: the engine's help lists `names`
    listed: bool = False
    #: the parser also accepts choices in uppercase and with dashes
    folded: bool = False

    @property
    def takes_many(self) -> bool:
        return self.kind.endswith(("+", "repeated"))

    def describe_violation(self, value: Any) -> str:
        """Return the range that a number is outside of, such as "must be above 0 and at most 1"; "" for any other value."""
        for limits in self.limits if isinstance(value, int | float) else ():
            if not all(is_within_limit(value, limit) for limit in limits.split()):
                return f"must be {' and '.join(map(_describe_limit, limits.split()))}"
        return ""


class OptionTable:
    """The options of an engine in all releases, and their names in recipes and commands."""

    def __init__(
        self,
        folder: Path,
        order: Callable[[str], Any],
        negatable_kind: str = "",
        values: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """Store the path of an engine's folder, whose tables are read on first use.

        negatable_kind: kind of the removed switches that `--no-x` turns off. order, values: see OptionHistory.
        """
        self._folder, self._negatable_kind = folder, negatable_kind
        self.history = OptionHistory(folder / "option_history.json", lambda: self._kinds, order, values)

    @cached_property
    def _table(self) -> Mapping[str, Any]:
        table: Mapping[str, Any] = json.loads((self._folder / "options.json").read_bytes())
        return table

    @property
    def release(self) -> str:
        """The newest known release."""
        return str(self._table["release"])

    @cached_property
    def newest_options(self) -> Mapping[str, Option]:
        """The options of the newest known release, by canonical name."""
        return _build_options(self._table["options"])

    @cached_property
    def all_options(self) -> Mapping[str, Option]:
        """The options of all examined releases, by canonical name."""
        newest_words = {word for option in self.newest_options.values() for word in option.words}
        removed = {
            name: {"kind": span.kind, "off": [f"--no-{name}"] if span.kind == self._negatable_kind else []}
            for name, span in self.history.spans.items()
            if f"--{name}" not in newest_words
        }
        return {**_build_options(removed), **_build_options(self._table.get("gone", {})), **self.newest_options}

    @cached_property
    def options_by_spelling(self) -> Mapping[str, tuple[Option, bool]]:
        """The option for each spelling without leading dashes, and True if that spelling turns it off."""
        options: dict[str, tuple[Option, bool]] = {}
        for option in self.all_options.values():
            options |= {word.lstrip("-"): (option, False) for word in option.words}
            options |= {word.lstrip("-"): (option, True) for word in option.off}
        return options

    @cached_property
    def _kinds(self) -> Mapping[str, str]:
        return {name: option.kind for name, option in self.newest_options.items()}

    def normalize(self, written_flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags by canonical name, in their order; if a flag has two spellings, the last one wins.

        `no-x: true` becomes `x: false`. An unknown name is kept, with dashes instead of underscores.
        """
        return dict(self._normalize(name, value) for name, value in written_flags.items())

    def canonical(self, spelling: str) -> str:
        """Return a flag's canonical name; for a spelling that turns a switch off, the name of the switch."""
        return self._normalize(spelling, True)[0]

    def _normalize(self, written: str, value: Any) -> tuple[str, Any]:
        spelling = written.lstrip("-").replace("_", "-")
        option, turns_off = self.options_by_spelling.get(spelling, (None, False))
        if option is None:
            return spelling, value
        return option.name, (not value if turns_off and isinstance(value, bool) else value)


class ListedOptions:
    """The options in an image's help output, stored as the difference from a known release. A shape describes an option's values."""

    def __init__(self, release: str, release_shapes: Callable[[], Mapping[str, str]]) -> None:
        """Set the known release. release_shapes: returns the shapes of its options, by name."""
        self._release, self._release_shapes = release, release_shapes

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return {"like": RELEASE, "differ": {name: shape}}; the shape of a missing option is None."""
        known_shapes = self._release_shapes()
        missing: dict[str, str | None] = dict.fromkeys(name for name in known_shapes if name not in shapes)
        changed = {name: shape for name, shape in shapes.items() if known_shapes.get(name) != shape}
        return {"like": self._release, "differ": {**missing, **changed}}

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return False if the stored difference is from another release, so that the image's options must be read again."""
        return difference is None or difference.get("like") == self._release

    def restore_options(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the shapes of an image's options, by name; empty if no usable difference is stored."""
        if difference is None or not self.is_current(difference):
            return {}
        return {name: shape for name, shape in {**self._release_shapes(), **difference["differ"]}.items() if shape}


def format_word(value: Any) -> str:
    """Return a single value as a word of a command; a mapping or list as JSON."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list | tuple) else str(value)


def format_value(value: Any) -> str:
    """Return a value as the end of an error message: "got 'x'"."""
    return f"got {one_line(repr(value), max_chars=MAX_SHOWN_CHARS)}"


def find_value_problem(
    option: Option, value: Any, value_parsers: ValueParsers, to_word: Callable[[Any], str], *, show_word: bool = False
) -> str:
    """Return the problem with a value, such as "must be a whole number, got '128q'"; "" if none is known.

    Args:
        to_word: returns the command's word for a single value.
        show_word: the message shows that word instead of the value in the recipe.
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
        problems = (
            _find_word_problem(option, to_word(item), format_value(to_word(item)), value_parsers) for item in value
        )
        return next(filter(None, problems), "")
    if is_list and option.kind not in ("list", "text", "json"):
        return f"takes one value, {format_value(value)}"
    return _find_word_problem(
        option, to_word(value), format_value(to_word(value) if show_word else value), value_parsers
    )


def _find_word_problem(option: Option, word: str, shown_value: str, value_parsers: ValueParsers) -> str:
    parse, expected = value_parsers.get(option.kind, (str, "text"))
    try:
        value = parse(word)
    except (ValueError, RecursionError):
        return f"must be {expected}, {shown_value}"
    if option.choices and value not in option.choices:
        return f"must be one of {', '.join(option.choices)}, {shown_value}"
    violation = option.describe_violation(value)
    return violation and f"{violation}, {shown_value}"


def is_within_limit(value: float, limit: str) -> bool:
    """Return True if a number is within a limit, such as ">=1"."""
    bound = limit.lstrip("<>=")
    return LIMIT_OPERATORS[limit.removesuffix(bound)][0](value, float(bound))


def _describe_limit(limit: str) -> str:
    bound = limit.lstrip("<>=")
    return f"{LIMIT_OPERATORS[limit.removesuffix(bound)][1]} {bound}"


def _build_options(rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Option]:
    return {name: _build_option(name, row) for name, row in rows.items()}


def _build_option(name: str, row: Mapping[str, Any]) -> Option:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Option(**{**fields, "name": name, "words": (f"--{name}", *fields.get("words", ()))})

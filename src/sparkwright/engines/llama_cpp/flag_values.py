"""Validation of values for llama-server's options by the table, before llama-server validates them.

Stricter than its parser on numbers, which silently reads "128k" as 128 and "1.5" as 1.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.llama_cpp import option_history, options
from sparkwright.engines.option_history import OptionHistory
from sparkwright.visible import one_line

SHOWN_CHARS = 60
LARGEST = 2**31 - 1
_INT, _FLOAT = re.compile(r"[+-]?\d{1,10}"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.I)
#: short words that switch off, beside those that begin with no-
SHORT_OFF = ("-nkvo", "-nr", "-nocb", "-ndio")
#: other words for on, off and auto
ON, OFF, AUTO = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0"), ("auto", "-1")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of llama-server."""

    name: str
    #: see options
    kind: str
    #: all words that switch it on, the long name first
    words: tuple[str, ...]
    #: all words that switch it off
    off: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    variable: str = ""


@functools.lru_cache(maxsize=1)
def newest() -> Mapping[str, Option]:
    """Return the options of the newest build by their own names."""
    return _options(options.OPTIONS)


@functools.lru_cache(maxsize=1)
def known() -> Mapping[str, Option]:
    """Return the options of every build that was read, by their own names."""
    gone = {name: kind for name, kind in HISTORY.kinds().items() if name not in newest()}
    rows = (f"{name} {kind}{f' --no-{name}' if kind == 'switch' else ''}" for name, kind in gone.items())
    return {**_options("\n".join(rows)), **_options(options.GONE), **newest()}


def _options(rows: str) -> Mapping[str, Option]:
    return {row.split()[0]: _option(row.split()) for row in rows.strip().splitlines()}


def _kinds() -> Mapping[str, str]:
    return {name: option.kind for name, option in newest().items()}


#: options by build
HISTORY = OptionHistory(
    option_history.RELEASES, option_history.ROWS, functools.cache(_kinds), lambda build: int(build.lstrip("b"))
)


@functools.lru_cache(maxsize=1)
def by_word() -> Mapping[str, tuple[Option, bool]]:
    """Return the option of each word (without dashes), and True if the word switches it off."""
    found: dict[str, tuple[Option, bool]] = {}
    for option in known().values():
        found |= {word.lstrip("-"): (option, False) for word in option.words}
        found |= {word.lstrip("-"): (option, True) for word in option.off}
    return found


def exists(name: str, build: int | None) -> bool | None:
    """Return True if a build has this option; None if not known."""
    return HISTORY.existence(name, f"b{build}" if build else None).exists


def word_of(option: Option, value: Any) -> str:
    """Return the word for a single value. A YAML `on` or `off` arrives here as a boolean."""
    if option.kind == "on" and isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping) or (option.kind == "json" and isinstance(value, list | tuple)):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def misfit(name: str, value: Any) -> str:
    """Return the problem with a value, as "must be a whole number, got '128k'"; "" if nothing is known against it."""
    option = known().get(name)
    if option is None or value is None:
        return ""
    if option.kind in ("switch", "bare"):
        return "" if isinstance(value, bool) else f"is a switch and takes no value, got {_shown(value)}"
    if isinstance(value, bool) and option.kind != "on":
        return f"needs a value, got {str(value).lower()}"
    if option.kind == "two" and not (isinstance(value, list | tuple) and len(value) == 2):
        return f"takes two values, got {_shown(value)}"
    if isinstance(value, list | tuple) and option.kind not in ("two", "text", "json"):
        return f"takes one value, got {_shown(value)}"
    each = value if isinstance(value, list | tuple) and option.kind == "two" else [value]
    return next((why for item in each if (why := _of_word(option, word_of(option, item)))), "")


def number(value: Any) -> int | None:
    """Return a whole number, given as a number or as digits; None for anything else."""
    if isinstance(value, bool) or not _INT.fullmatch(str(value).strip()):
        return None
    return int(str(value))


def is_on(value: Any) -> bool | None:
    """Return True for a value that means on, False for off; None for auto, for none and for any other word."""
    word = str(value).lower()
    return True if word in ON else False if word in OFF else None


def _of_word(option: Option, word: str) -> str:
    got = f"got {_shown(word)}"
    if option.kind in ("int", "two") or (option.kind == "layers" and word not in ("auto", "all")):
        return _of_number(option, word, got)
    if option.kind == "float":
        return "" if _FLOAT.fullmatch(word.strip()) else f"must be a number, {got}"
    if option.kind == "json":
        return "" if _is_json(word) else f"must be a mapping, as YAML or as JSON, {got}"
    if option.kind == "on":
        allowed = (*ON, *OFF, *(() if option.choices else AUTO))
        return (
            ""
            if word.lower() in allowed
            else f"must be one of {', '.join(option.choices or ('on', 'off', 'auto'))}, {got}"
        )
    if option.choices and word not in option.choices:
        return f"must be one of {', '.join(option.choices)}, {got}"
    return ""


def _of_number(option: Option, word: str, got: str) -> str:
    wanted = "a whole number, auto or all" if option.kind == "layers" else "a whole number"
    if not _INT.fullmatch(word.strip()) or abs(int(word)) > LARGEST:
        return f"must be {wanted}, {got}"
    least = options.AT_LEAST.get(option.name)
    if option.name == "parallel" and int(word) == 0:
        return f"must be at least 1, or -1 for as many as it chooses, {got}"
    return f"must be at least {least}, {got}" if least is not None and int(word) < least else ""


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _option(parts: list[str]) -> Option:
    name, kind, *rest = parts
    words = tuple(part for part in rest if part.startswith("-"))
    off = tuple(
        word for word in words if kind == "switch" and (word.lstrip("-").startswith("no-") or word in SHORT_OFF)
    )
    braced = next((part for part in rest if part.startswith("{")), "{}")[1:-1]
    choices = tuple(braced.split(",")) if braced else options.CHOICES.get(name, ())
    variable = rest[-1] if rest and rest[-1].isupper() and not rest[-1].startswith("-") else ""
    on = (f"--{name}", *(word for word in words if word not in off))
    return Option(name, kind, on, off, choices, variable)


def _shown(value: Any) -> str:
    return one_line(repr(value), at_most=SHOWN_CHARS)

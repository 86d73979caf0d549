"""Parser of a running `llama-server`'s command: the reverse of `flags.argv`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sparkwright.engines.command_words import Command
from sparkwright.engines.llama_cpp import flag_values, flags


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, a number as a number. Other words are skipped."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, off = flag_values.by_word().get(word.lstrip("-").replace("_", "-"), (None, False))
        if not word.startswith("-"):
            continue
        if option is None:
            found[flags.canonical(word)] = _plain(rest.pop(0)) if rest and not rest[0].startswith("-") else True
        elif option.kind in ("switch", "bare"):
            found[option.name] = not off
        else:
            count = 2 if option.kind == "two" else 1
            given, rest = rest[:count], rest[count:]
            found[option.name] = _given(option, given)
    return Command(str(found.pop(flags.MODEL, "")), found)


def _given(option: flag_values.Option, words: Sequence[str]) -> Any:
    if option.kind == "two":
        return [_plain(word) for word in words]
    word = words[0] if words else ""
    return word if option.kind in ("text", "on") else _plain(word)


def _plain(word: str) -> Any:
    """Return a word as the number or the mapping that it holds, else as text."""
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return found if isinstance(found, int | float | dict) and not isinstance(found, bool) else word

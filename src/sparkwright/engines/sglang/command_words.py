"""Parser of a running `sglang serve`'s command: the reverse of `flags.argv`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sparkwright.engines.command_words import Command
from sparkwright.engines.sglang import flag_values, flags

#: words before the flags in a command; older guides start the module
PROGRAM = frozenset(("sglang", "serve", "python", "python3", "-m", "sglang.launch_server"))


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, a number as a number, several words as a list.

    0.5.23 also takes the model as the first word.
    """
    found: dict[str, Any] = {}
    first = ""
    for written, values in _grouped(words):
        if written:
            found |= flags.named({written: _value(flags.canonical(written), values)})
        else:
            first = next((word for word in values if word.rpartition("/")[2] not in PROGRAM), "")
    return Command(str(found.pop(flags.MODEL, "") or first), found)


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option with the words after it; words before the first option have an empty name."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            yield name, values
            name, equals, text = word.partition("=")
            values = [text] if equals else []
        else:
            values.append(word)
    yield name, values


def _value(name: str, words: list[str]) -> Any:
    kind = flag_values.kinds().get(name, "")
    if kind in flag_values.SWITCHES or not words:
        return True
    if kind == "list" or len(words) > 1:
        return [_plain(word) for word in words]
    return words[0] if kind == "text" else _plain(words[0])


def _plain(word: str) -> Any:
    """Return a word as the number, the mapping or the list that it holds, else as text."""
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return found if isinstance(found, int | float | dict | list) and not isinstance(found, bool) else word

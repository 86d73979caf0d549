"""The words of a running `sglang serve` as flags again: the other direction of `flags.argv`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sparkwright.engines.command_words import Command
from sparkwright.engines.sglang import flag_values, flags

#: what stands before the flags in a command; the module is how older guides start it
PROGRAM = frozenset(("sglang", "serve", "python", "python3", "-m", "sglang.launch_server"))


def parsed(words: Sequence[str]) -> Command:
    """The model and the flags of a command: a switch is true or false, a number a number, a flag of several words a list.

    0.5.23 takes the model as first word, too.
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
    """Each option with the words after it; what stands before the first one under an empty name."""
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
    """A number, a mapping or a list where the word is one, else the word."""
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return found if isinstance(found, int | float | dict | list) and not isinstance(found, bool) else word

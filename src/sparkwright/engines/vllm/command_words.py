"""Parser of a running `vllm serve`'s command: the reverse of `flags.argv`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sparkwright.engines.command_words import Command
from sparkwright.engines.vllm.flags import flag_values, flags

#: words before the model in a command
PROGRAM = frozenset(("vllm", "serve"))


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, several words as a list, JSON as its value."""
    grouped = list(_grouped(words))
    found: dict[str, Any] = {}
    for written, values in grouped:
        for name, message in flags.named({written: _value(values)}).items() if written else ():
            before = found.get(name)
            again = before is not None and flag_values.repeats(name)
            found[name] = [*(before if isinstance(before, list) else [before]), message] if again else message
    leading = (word for name, values in grouped if not name for word in values)
    first = next((word for word in leading if word.rpartition("/")[2] not in PROGRAM), "")
    return Command(str(found.pop(flags.MODEL, None) or first), found)


def _grouped(words: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    """Yield each option with the words after it; words before the first option have an empty name."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    yield name, values


def _value(words: list[str]) -> Any:
    if len(words) > 1:
        return words
    return _plain(words[0]) if words else True


def _plain(word: str) -> Any:
    """Return a word as the number, the mapping or the list that it holds, else as text."""
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return found if isinstance(found, int | float | dict | list) and not isinstance(found, bool) else word

"""One option's value among the words of a command, whatever the engine."""

from __future__ import annotations

from collections.abc import Sequence


def value(command: Sequence[str], option: str) -> str:
    """An option's first value, given as `--option value` or `--option=value`; the last one counts. Empty for none."""
    found = ""
    for word, after in zip(command, [*command, ""][1:], strict=True):
        name, equals, text = word.partition("=")
        if name.replace("_", "-") == option:
            found = text if equals else after
    return found

"""Checks of numbers in a command line: valid, and within the range of their option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: the smallest valid value of numeric options
LEAST: dict[str, float] = {
    "canary": 0,
    "every": 0.1,
    "last": 1,
    "long-tokens": 0,
    "output-tokens": 0,
    "prompt-tokens": 0,
    "repeat": 1,
    "requests": 0,
    "tail": 1,
    "timeout-s": 0.1,
    "token-s": 0,
}
#: the largest valid value of durations and counts; a seed has no limit
MOST = 1e9
ANY = ("seed",)


def out_of_range(context: Any) -> str:
    """Return a message if a number is out of range for its option; empty otherwise."""
    numbers = (option for option in context.args.values() if option.kind in (int, float) and option.got_value)
    for option in (number for number in numbers if number.name not in ANY):
        name = option.name.replace("_", "-")
        least = LEAST.get(name, -MOST)
        if not least <= option.value <= MOST:  # also False for NaN
            bound = f"at least {least:g}" if option.value < least else f"a number up to {MOST:,.0f}"
            return f"--{name} must be {bound}, got {option.value}."
    return ""


def none_in(words: Sequence[str], command: Any) -> str:
    """Return a message that names the option whose value must be a number, and is not."""
    for n, word in enumerate(words):
        option, _, value = word.partition("=")
        value = value or (words[n + 1] if n + 1 < len(words) else "")
        flag = command.flags.get(option) if command is not None else None
        if flag is not None and flag.kind in (int, float) and not _is_number(value, flag.kind):
            return f"{option} must be a number, got '{value}'."
    return "a number is expected on the command line."


def _is_number(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True

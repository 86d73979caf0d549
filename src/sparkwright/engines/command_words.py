"""The words of a command that starts a server: its model and its flags, for any engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Command:
    """The model and the flags in a container's command."""

    #: as it stands in the command; empty if the command names none
    model: str = ""
    flags: dict[str, Any] = field(default_factory=dict)


def value(command: Sequence[str], option: str) -> str:
    """Return the first value of an option, given as `--option value` or `--option=value`; of a repeated option the last counts.
    Empty for none."""
    found = ""
    for word, after in zip(command, [*command, ""][1:], strict=True):
        name, equals, text = word.partition("=")
        if name.replace("_", "-") == option:
            found = text if equals else after
    return found

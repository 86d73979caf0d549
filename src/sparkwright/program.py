"""The name under which this program was started, and its use in commands that messages mention.

Messages of both the laptop and the host write a command as `invoke deploy --host spark1`. A host can't tell how the laptop's
program was started, so the laptop replaces the name when it prints: `sparkwright deploy --host spark1`, unless Invoke started it.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

PROGRAM_NAME, INVOKE_NAMES = "sparkwright", ("invoke", "inv")
#: the program's name before a command, as in `invoke health.install`: after a backtick, or at the start of the text
_COMMAND_PATTERN = re.compile(
    r"(?:(?<=`)(?:sparkwright|invoke|inv)|^(?:invoke|inv)) (?=[a-z]+(?:\.[a-z]+)?(?:`| |\.\*|$))"
)


@functools.cache
def name() -> str:
    """Return invoke, inv or sparkwright, as the user started it; `python -m invoke` counts as invoke."""
    executable = Path(sys.argv[0])
    stem = executable.parent.name if executable.stem == "__main__" else executable.stem
    return stem if stem in INVOKE_NAMES else PROGRAM_NAME


def rewrite_commands(text: str) -> str:
    """Return text with the program's name in its commands replaced with the one that the user started."""
    return _COMMAND_PATTERN.sub(f"{name()} ", text) if "`" in text or text.startswith(INVOKE_NAMES) else text


def rewrite_commands_in(value: Any) -> Any:
    """Return a JSON value with `rewrite_commands` applied to every text except keys."""
    if isinstance(value, str):
        return rewrite_commands(value)
    if isinstance(value, dict):
        return {key: rewrite_commands_in(item) for key, item in value.items()}
    return [rewrite_commands_in(item) for item in value] if isinstance(value, list) else value

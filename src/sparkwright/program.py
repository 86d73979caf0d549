"""The name of this program, and the commands in messages as its user types them.

Messages of both sides write a command as `invoke deploy --host spark1`. A host can't know how the laptop's program was started:
the laptop puts the right name into what it shows, `sparkwright deploy --host spark1` unless it was started by Invoke.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

PROGRAM_NAME, INVOKE_NAMES = "sparkwright", ("invoke", "inv")
#: a program's name before a command: `invoke health.install`, `invoke attach --host spark1`; a text that is a command and no more
_COMMAND = re.compile(r"(?:(?<=`)(?:sparkwright|invoke|inv)|^(?:invoke|inv)) (?=[a-z]+(?:\.[a-z]+)?(?:`| |\.\*|$))")


@functools.cache
def name() -> str:
    """Return invoke, inv or sparkwright. `python -m invoke` is invoke."""
    executable = Path(sys.argv[0])
    stem = executable.parent.name if executable.stem == "__main__" else executable.stem
    return stem if stem in INVOKE_NAMES else PROGRAM_NAME


def rewrite_commands(text: str) -> str:
    """Return a text with its commands as this program's user types them."""
    return _COMMAND.sub(f"{name()} ", text) if "`" in text or text.startswith(INVOKE_NAMES) else text


def rewrite_commands_in(value: Any) -> Any:
    """Return a JSON value with `rewrite_commands` applied to every text; its keys are unchanged."""
    if isinstance(value, str):
        return rewrite_commands(value)
    if isinstance(value, dict):
        return {key: rewrite_commands_in(item) for key, item in value.items()}
    return [rewrite_commands_in(item) for item in value] if isinstance(value, list) else value

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

OWN, INVOKE = "sparkwright", ("invoke", "inv")
#: a program's name before a command: `invoke health.install`, `invoke attach --host spark1`; a text that is a command and no more
_COMMAND = re.compile(r"(?:(?<=`)(?:sparkwright|invoke|inv)|^(?:invoke|inv)) (?=[a-z]+(?:\.[a-z]+)?(?:`| |\.\*|$))")


@functools.cache
def name() -> str:
    """Return invoke, inv or sparkwright. `python -m invoke` is invoke."""
    started = Path(sys.argv[0])
    word = started.parent.name if started.stem == "__main__" else started.stem
    return word if word in INVOKE else OWN


def typed(text: str) -> str:
    """Return a text with its commands as this program's user types them."""
    return _COMMAND.sub(f"{name()} ", text) if "`" in text or text.startswith(INVOKE) else text


def typed_in(value: Any) -> Any:
    """Return a JSON value with `typed` applied to every text; its keys are unchanged."""
    if isinstance(value, str):
        return typed(value)
    if isinstance(value, dict):
        return {key: typed_in(item) for key, item in value.items()}
    return [typed_in(item) for item in value] if isinstance(value, list) else value

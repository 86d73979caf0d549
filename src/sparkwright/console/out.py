"""What a command prints beside a run's events: text for a person, or JSON, with nothing in it that a terminal acts on."""

from __future__ import annotations

import sys
from typing import TextIO

from sparkwright.trust.visible import visible


def say(text: object = "", *, end: str = "\n", to: TextIO | None = None) -> None:
    """Print it, control characters made visible: it may quote a host, a hub or a file. to: standard output if not given."""
    print(visible(str(text)), end=end, file=to or sys.stdout)

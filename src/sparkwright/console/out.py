"""What a command prints beside a run's events: text for a person, or JSON, with nothing in it that a terminal acts on, and with
commands as they are typed here."""

from __future__ import annotations

import json
from typing import Any, TextIO

from sparkwright.program import typed, typed_in
from sparkwright.trust.bounds import clean
from sparkwright.trust.visible import visible


def say(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """As `print`, with control characters made visible: it may quote a host, a hub or a file."""
    print(typed(visible(str(text))), end=end, file=file, flush=True)


def say_json(value: Any) -> None:
    """One line of JSON. Made visible before it is written, for an escape made visible after that would be no JSON."""
    print(json.dumps(typed_in(clean(json.loads(json.dumps(value, default=str)))), ensure_ascii=False))

"""The output of a command besides a run's events: text for a person, or JSON.

Control characters are made visible, and commands are named as they are typed here.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from sparkwright.errors import SparkwrightError
from sparkwright.program import typed, typed_in
from sparkwright.trust.bounds import clean
from sparkwright.visible import visible


def say(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print text with control characters made visible, as it may quote a host, the hub or a file."""
    print(typed(visible(str(text))), end=end, file=file, flush=True)


def say_error(error: SparkwrightError, *, json: bool, host: str = "") -> None:
    """Print an error to standard error, and with --json as a line on standard output too."""
    named = host if host and host not in (error.where, str(error).partition(":")[0]) else ""
    say(f"{named}: {error}" if named else error, file=sys.stderr)
    if json:
        say_json(error_row(str(error), error.exit, host=host))


def error_row(sentence: str, code: int, *, host: str = "") -> dict[str, Any]:
    """Return an error in the form that every command has in --json: the message and its exit code."""
    return {**({"host": host} if host else {}), "error": sentence, "exit": int(code)}


def say_json(value: Any) -> None:
    """Print one line of JSON. Control characters are made visible before encoding, as it would be invalid otherwise."""
    print(json.dumps(typed_in(clean(json.loads(json.dumps(value, default=str)))), ensure_ascii=False))

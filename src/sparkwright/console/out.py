"""A command's output other than a run's events, as text or JSON.

Control characters are made visible, and commands are shown as they are typed here. Prose is wrapped at words on a terminal; text
that is meant to be copied (commands, paths, YAML, JSON) is printed as it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from typing import Any, TextIO

from sparkwright.errors import SparkwrightError
from sparkwright.program import typed, typed_in
from sparkwright.trust.bounds import clean
from sparkwright.visible import visible

#: the start of a line that continuation lines leave blank: the first cells of a table with their gaps, a bar, or an arrow
_HANGING = re.compile(r" *(?:[|→] |(?:\S{1,32}(?: \S{1,32}){0,3} {2,30}){0,2})")
#: a command in a sentence, which is not broken across lines
_COMMAND = re.compile(r"`[^`\n]{1,200}`")
#: placeholder for a space at which lines must not be wrapped
_FIXED = "\ue000"


def width(file: TextIO | None = None) -> int | None:
    """Return the columns of the terminal, or $COLUMNS; None in a pipe without $COLUMNS, where nothing is wrapped."""
    terminal = (file or sys.stdout).isatty()
    return shutil.get_terminal_size().columns if terminal or "COLUMNS" in os.environ else None


def folded(sentence: str, room: int | None, indent: str = "", *, divides: bool = True) -> list[str]:
    """Wrap a sentence, keeping its line breaks and not breaking commands.

    Args:
        indent: prefix of each continuation line.
        divides: break words that are longer than the room.
    """
    own = sentence.split("\n")
    if room is None:
        return own
    wrap = textwrap.TextWrapper(
        room, break_on_hyphens=False, subsequent_indent=indent, drop_whitespace=True, break_long_words=divides
    )
    most = room - len(indent)

    def unbroken(found: re.Match[str]) -> str:
        return found[0].replace(" ", _FIXED) if len(found[0]) <= most else found[0]

    wrapped = [[item] if len(item) <= room else wrap.wrap(_COMMAND.sub(unbroken, item)) or [""] for item in own]
    return [line.replace(_FIXED, " ") for lines in wrapped for line in lines]


def hanging(text: str, room: int | None, *, divides: bool = True) -> list[str]:
    """Wrap lines at words. Continuation lines are aligned with the text after a line's first cells."""
    if room is None:
        return text.split("\n")
    found = []
    for line in text.split("\n"):
        indent = " " * min(len(match[0]) if (match := _HANGING.match(line)) else 0, room // 2)
        found += folded(line, room, indent, divides=divides) if " " in line.strip() or divides else [line]
    return found


def say(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print text with control characters made visible, because it may quote a host, the hub or a file."""
    print(typed(visible(str(text))), end=end, file=file, flush=True)


def say_prose(text: object, *, file: TextIO | None = None) -> None:
    """Print sentences as `say` does, wrapped at words on a terminal. Words that are too long are left to the terminal."""
    shown, room = typed(visible(str(text))), width(file)
    say("\n".join(hanging(shown, room, divides=False)), file=file)


def say_error(error: SparkwrightError, *, json: bool, host: str = "") -> None:
    """Print an error to standard error, and with --json also as a line on standard output."""
    named = host if host and host not in (error.where, str(error).partition(":")[0]) else ""
    say_prose(f"{named}: {error}" if named else error, file=sys.stderr)
    if json:
        say_json(error_row(str(error), error.exit, host=host))


def error_row(sentence: str, code: int, *, host: str = "") -> dict[str, Any]:
    """Return an error in the form that all commands use with --json: the message and the exit code."""
    return {**({"host": host} if host else {}), "error": sentence, "exit": int(code)}


def say_json(value: Any) -> None:
    """Print one line of JSON. Control characters are made visible before encoding, to keep the JSON valid."""
    print(json.dumps(typed_in(clean(json.loads(json.dumps(value, default=str)))), ensure_ascii=False))

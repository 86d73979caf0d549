"""Print a command's output, except a run's events, as text or JSON.

Control characters are made visible, and commands are rewritten for the installed program. On a terminal, prose is wrapped
between words; text to be copied (commands, paths, YAML, JSON) is not.
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
from sparkwright.program import rewrite_commands, rewrite_commands_in
from sparkwright.trust.bounds import sanitize
from sparkwright.visible import escape_invisible

#: the start of a line: the bar of quoted evidence, which continuation lines repeat, and an arrow or a table's first cells with
#: their gaps, below which they are blank
_HANGING_INDENT_PATTERN = re.compile(r"( *(?:\| )?)( *(?:→ |(?:\S{1,32}(?: \S{1,32}){0,3} {2,30}){0,2}))")
#: a quoted command, which is not broken across lines
_COMMAND_PATTERN = re.compile(r"`[^`\n]{1,200}`")
#: placeholder for a space at which a line must not be wrapped
_UNBREAKABLE_SPACE = "\ue000"


def terminal_width(file: TextIO | None = None) -> int | None:
    """Return the terminal's width, or $COLUMNS; None in a pipe without $COLUMNS, where nothing is wrapped."""
    is_terminal = (file or sys.stdout).isatty()
    return shutil.get_terminal_size().columns if is_terminal or "COLUMNS" in os.environ else None


def wrap_sentence(text: str, max_width: int | None, indent: str = "", *, break_long_words: bool = True) -> list[str]:
    """Wrap text between words, keeping its line breaks and not breaking quoted commands.

    Args:
        indent: prefix of each continuation line.
        break_long_words: break words that are longer than max_width.
    """
    paragraphs = text.split("\n")
    if max_width is None:
        return paragraphs
    wrapper = textwrap.TextWrapper(
        max_width,
        break_on_hyphens=False,
        subsequent_indent=indent,
        drop_whitespace=True,
        break_long_words=break_long_words,
    )
    max_command_width = max_width - len(indent)

    def keep_together(match: re.Match[str]) -> str:
        return match[0].replace(" ", _UNBREAKABLE_SPACE) if len(match[0]) <= max_command_width else match[0]

    wrapped_paragraphs = [
        [paragraph]
        if len(paragraph) <= max_width
        else wrapper.wrap(_COMMAND_PATTERN.sub(keep_together, paragraph)) or [""]
        for paragraph in paragraphs
    ]
    return [line.replace(_UNBREAKABLE_SPACE, " ") for lines in wrapped_paragraphs for line in lines]


def wrap_hanging(text: str, max_width: int | None, *, break_long_words: bool = True) -> list[str]:
    """Wrap lines between words. Continuation lines repeat a bar, and are aligned with the text after a line's first cells."""
    if max_width is None:
        return text.split("\n")
    wrapped_lines = []
    for line in text.split("\n"):
        match = _HANGING_INDENT_PATTERN.match(line)
        assert match is not None  # it matches an empty text
        indent = f"{match[1]}{' ' * len(match[2])}"[: max_width // 2]
        wrapped_lines += (
            wrap_sentence(line, max_width, indent, break_long_words=break_long_words)
            if " " in line.strip() or break_long_words
            else [line]
        )
    return wrapped_lines


def print_text(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print text with control characters made visible, because it may quote a host, the hub or a file."""
    print(rewrite_commands(escape_invisible(str(text))), end=end, file=file, flush=True)


def print_prose(text: object, *, file: TextIO | None = None) -> None:
    """Print prose as `print_text` does, but wrapped between words on a terminal. Overlong words are not broken."""
    prose, max_width = rewrite_commands(escape_invisible(str(text))), terminal_width(file)
    print_text("\n".join(wrap_hanging(prose, max_width, break_long_words=False)), file=file)


def print_error(error: SparkwrightError, *, json: bool, host: str = "") -> None:
    """Print an error to standard error, and with --json also as a line on standard output."""
    prefix = host if host and host not in (error.where, str(error).partition(":")[0]) else ""
    print_prose(f"{prefix}: {error}" if prefix else error, file=sys.stderr)
    if json:
        print_json_line(error_row(str(error), error.exit, host=host))


def error_row(message: str, code: int, *, host: str = "") -> dict[str, Any]:
    """Return an error in the form that all commands use with --json: the message and the exit code."""
    return {**({"host": host} if host else {}), "error": message, "exit": int(code)}


def print_json_line(value: Any) -> None:
    """Print a value as one line of JSON, with control characters in its strings made visible."""
    print(json.dumps(rewrite_commands_in(sanitize(json.loads(json.dumps(value, default=str)))), ensure_ascii=False))

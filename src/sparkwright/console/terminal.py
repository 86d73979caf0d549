"""Rich's Console for plain text, without markup, emoji codes or highlighting."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from sparkwright.console import grid


class Terminal(Console):
    """A Console that leaves a closed pipe to the command, as `print` does, where Rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise


def terminal(**options: Any) -> Console:
    """Return a Console for text from any source.

    Args:
        options: options of `Console`.
    """
    return Terminal(markup=False, emoji=False, highlight=False, **options)


def styled_line(line: grid.Line, title: str, style: str) -> Text:
    """Return a line of a table with a style for the cell in one column."""
    found = Text.assemble(*((text, style if name == title else "") for name, text in line))
    found.rstrip()
    return found


def column(text: str, **options: Any) -> TextColumn:
    """Return a column of a progress bar whose values are plain text."""
    return TextColumn(text, markup=False, **options)

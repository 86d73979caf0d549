"""The terminal as Rich sees it: what is printed is text, never markup, emoji codes or something to highlight."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from sparkwright.console import grid


class Terminal(Console):
    """A Console that leaves a closed pipe to the command, as `print` does: Rich itself would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise


def terminal(**options: Any) -> Console:
    """A Console for text from anywhere. options: as `Console` takes them."""
    return Terminal(markup=False, emoji=False, highlight=False, **options)


def styled_line(line: grid.Line, title: str, style: str) -> Text:
    """A line of a table; the cell below this title has the style."""
    found = Text.assemble(*((text, style if name == title else "") for name, text in line))
    found.rstrip()
    return found


def column(text: str, **options: Any) -> TextColumn:
    """A column of a progress bar; what is filled in is text too."""
    return TextColumn(text, markup=False, **options)

"""Rich's Console for plain text, without markup, emoji codes or highlighting."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from sparkwright.console import grid

UNKNOWN_SIZES = {("COLUMNS", "0"), ("LINES", "0")}


class PlainConsole(Console):
    """A Console that raises BrokenPipeError like `print`, where Rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise


def build_console(**options: Any) -> Console:
    """Return a Console for text from any source. options: options of `Console`."""
    # a size of 0 is unknown; Rich would print nothing
    environment = {name: value for name, value in os.environ.items() if (name, value) not in UNKNOWN_SIZES}
    return PlainConsole(markup=False, emoji=False, highlight=False, _environ=environment, **options)


def style_table_line(line: grid.Line, title: str, style: str) -> Text:
    """Return a line of a table with a style for the cell in one column."""
    styled = Text.assemble(*((text, style if name == title else "") for name, text in line))
    styled.rstrip()
    return styled


def text_column(text: str, **options: Any) -> TextColumn:
    """Return a column of a progress bar whose values are plain text."""
    return TextColumn(text, markup=False, **options)

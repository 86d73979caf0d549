"""Rich's Console for plain text, without markup, emoji codes or highlighting."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from sparkwright.console import grid


class PlainConsole(Console):
    """A Console that raises BrokenPipeError like `print`, where Rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise


def build_console(**options: Any) -> Console:
    """Return a Console for text from any source. options: options of `Console`."""
    return PlainConsole(markup=False, emoji=False, highlight=False, **options)


def style_table_line(line: grid.Line, title: str, style: str) -> Text:
    """Return a line of a table with a style for the cell in one column."""
    styled = Text.assemble(*((text, style if name == title else "") for name, text in line))
    styled.rstrip()
    return styled


def text_column(text: str, **options: Any) -> TextColumn:
    """Return a column of a progress bar whose values are plain text."""
    return TextColumn(text, markup=False, **options)

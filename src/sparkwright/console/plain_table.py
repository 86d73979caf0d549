"""A table that a command prints once, with control characters made visible."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.console import grid
from sparkwright.console.out import say
from sparkwright.visible import one_line


def show(columns: Sequence[grid.Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their titles, or nothing if there are none. The last column is a sentence, as in grid.py."""
    if not rows:
        return
    for found in grid.lines(columns, [[one_line(cell) for cell in row] for row in rows], grid.width()):
        for line in found:
            say(grid.text(line))

"""Lay out tables for any width: the least important columns are dropped, and all others are shown in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkwright.console.command_output import print_text, terminal_width, wrap_sentence
from sparkwright.program import rewrite_commands
from sparkwright.visible import one_line

GAP = "  "
INDENT = "    "
#: minimum width of a sentence next to the other columns; with less room it is printed below them
MIN_SENTENCE_WIDTH = 30
#: minimum width of a sentence in a very narrow window
MIN_SENTENCE_WIDTH_BELOW = 20
#: content of cells without a value
EMPTY_CELLS = ("", "-")

#: the cells of a line, as (column title, padded text)
Line = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    #: columns with the highest number are dropped first from a table that is too wide; 0 for never
    drop_order: int = 0


def columns(*specs: tuple[str, int]) -> tuple[Column, ...]:
    """Return the columns of a table. specs: (title, drop_order) of each column."""
    return tuple(Column(*spec) for spec in specs)


def format_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]], max_width: int | None) -> list[list[Line]]:
    """Return the lines of the header, followed by those of each row.

    The last column contains sentences, in which commands are named as the user started the program. They are wrapped next to the
    other columns, or below them if fewer than MIN_SENTENCE_WIDTH characters remain. A column without content is dropped, unless
    its `drop_order` is 0.

    Args:
        max_width: characters per line; None if unlimited.
    """
    rows = [[*row[:-1], rewrite_commands(row[-1])] for row in rows]
    shown_numbers = [n for n, column in enumerate(columns[:-1]) if not column.drop_order or _has_content(rows, n)]
    has_sentence = _has_content(rows, len(columns) - 1)
    longest_sentence = max((len(row[-1]) for row in rows), default=0)
    is_same_line = (
        max_width is None
        or not has_sentence
        or max_width - _total_width(columns, rows, shown_numbers) >= min(MIN_SENTENCE_WIDTH, longest_sentence)
    )

    def fits(numbers: Sequence[int]) -> bool:
        width = _total_width(columns, rows, numbers, is_last=not is_same_line or not has_sentence)
        return max_width is None or width <= max_width

    while not fits(shown_numbers):
        dropped_number = max(shown_numbers, key=lambda n: columns[n].drop_order)
        if not columns[dropped_number].drop_order:
            break
        shown_numbers.remove(dropped_number)
    # in a window that is still too narrow, only the columns are aligned that fit
    shown_columns = [
        (n, _column_width(columns, rows, n) if fits(shown_numbers[: position + 1]) else 0)
        for position, n in enumerate(shown_numbers)
    ]
    layout = _Layout(columns, shown_columns, max_width, is_same_line and fits(shown_numbers))
    titles = [
        *(column.title for column in columns[:-1]),
        columns[-1].title if has_sentence and layout.is_same_line else "",
    ]
    return [list(layout.row_lines(row)) for row in (titles, *rows)]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a table's lines."""

    #: all columns
    columns: Sequence[Column]
    #: the shown columns as (number, width); if the width is 0, cells are not padded
    shown_columns: Sequence[tuple[int, int]]
    #: characters per line; None if unlimited
    max_width: int | None
    #: True if the sentence is next to the other columns, False if it is below them
    is_same_line: bool

    def row_lines(self, row: Sequence[str]) -> Iterator[Line]:
        sentence_start = sum(width + len(GAP) for _, width in self.shown_columns) if self.is_same_line else len(INDENT)
        sentence_width = (
            None if self.max_width is None else max(MIN_SENTENCE_WIDTH_BELOW, self.max_width - sentence_start)
        )
        first_line, *other_lines = wrap_sentence(row[-1], sentence_width)
        if not self.is_same_line:
            first_line, other_lines = "", [first_line, *other_lines] if first_line else []
        yield from self._cells(row, first_line)
        yield from ([("", " " * sentence_start), (self.columns[-1].title, line)] for line in other_lines)

    def _cells(self, row: Sequence[str], sentence: str) -> Iterator[Line]:
        """Yield the shown columns and the sentence next to them, over several lines in a narrow window."""
        cells = [(self.columns[n].title, f"{row[n]:<{width}}") for n, width in self.shown_columns]
        cells += [(self.columns[-1].title, sentence)] if sentence else []
        line: Line = []
        for title, cell in cells:
            width = sum(len(text) for _, text in line) + len(cell.rstrip())
            if line and self.max_width is not None and width > self.max_width:
                yield line
                line = [("", INDENT)]
            line.append((title, cell + GAP))
        yield line


def plain_text(line: Line) -> str:
    """Return the text of a line."""
    return "".join(cell for _, cell in line).rstrip()


def _has_content(rows: Sequence[Sequence[str]], index: int) -> bool:
    return any(row[index] not in EMPTY_CELLS for row in rows)


def _column_width(columns: Sequence[Column], rows: Sequence[Sequence[str]], index: int) -> int:
    return max(len(columns[index].title), *(len(row[index]) for row in rows)) if rows else len(columns[index].title)


def _total_width(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], shown_numbers: Sequence[int], *, is_last: bool = False
) -> int:
    """Return the width of the columns with their gaps. is_last: True if no column follows them."""
    return sum(_column_width(columns, rows, n) + len(GAP) for n in shown_numbers) - (len(GAP) if is_last else 0)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as laid out by `format_rows`; nothing if there are no rows."""
    if not rows:
        return
    for row_lines in format_rows(columns, [[one_line(cell) for cell in row] for row in rows], terminal_width()):
        for line in row_lines:
            print_text(plain_text(line))

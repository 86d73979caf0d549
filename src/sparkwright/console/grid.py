"""Layout of tables for any width: important columns are never cut, and the least important ones are dropped first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkwright.console.out import folded, say, width
from sparkwright.visible import one_line

GAP = "  "
INDENT = "    "
#: characters that a sentence needs next to the other columns; with less room it is printed below them
LEAST = 30
#: least width of a sentence in a very narrow window, in characters
LEAST_BELOW = 20
#: content of cells without a value
NOTHING = ("", "-")

#: the cells of a line, as (column title, padded text)
Line = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    #: order in which columns are dropped for lack of room, highest first; 0 for never
    leaves: int = 0


def columns(*given: tuple[str, int]) -> tuple[Column, ...]:
    """Return the columns of a table, given (title, leaves) for each."""
    return tuple(Column(*item) for item in given)


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[list[Line]]:
    """Return the lines of the titles, then those of each row.

    The last column is a sentence. It is wrapped next to the others, or below its row if fewer than LEAST characters remain, and a
    newline in it starts a new line. A column without any content is left out, unless it is never dropped.

    Args:
        room: characters per line; None for no limit.
    """
    kept = [n for n, column in enumerate(columns[:-1]) if not column.leaves or _says(rows, n)]
    reported = _says(rows, len(columns) - 1)
    longest = max((len(row[-1]) for row in rows), default=0)
    wide = room is None or not reported or room - _taken(columns, rows, kept) >= min(LEAST, longest)
    while room is not None and _taken(columns, rows, kept, last=not wide or not reported) > room:
        leaving = max(kept, key=lambda n: columns[n].leaves)
        if not columns[leaving].leaves:
            break
        kept.remove(leaving)
    ragged = room is not None and _taken(columns, rows, kept, last=not wide or not reported) > room
    shape = _Shape(columns, [(n, 0 if ragged else _wide(columns, rows, n)) for n in kept], room, wide and not ragged)
    titles = [*(column.title for column in columns[:-1]), columns[-1].title if reported and shape.beside else ""]
    return [list(shape.of(row)) for row in (titles, *rows)]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The layout of a table's lines."""

    #: all columns
    columns: Sequence[Column]
    #: the shown columns as (number, width), where width 0 means as wide as the text
    kept: Sequence[tuple[int, int]]
    room: int | None
    #: True if the sentence of the last column goes next to the others, not below
    beside: bool

    def of(self, row: Sequence[str]) -> Iterator[Line]:
        """Yield the lines of a row, including its sentence."""
        start = sum(wide + len(GAP) for _, wide in self.kept) if self.beside else len(INDENT)
        first, *rest = folded(row[-1], None if self.room is None else max(LEAST_BELOW, self.room - start))
        if not self.beside:
            first, rest = "", [first, *rest] if first else []
        yield from self._cells(row, first)
        yield from ([("", " " * start), (self.columns[-1].title, item)] for item in rest)

    def _cells(self, row: Sequence[str], sentence: str) -> Iterator[Line]:
        """Yield the lines with the shown columns and the sentence next to them, more than one in a narrow window."""
        found = [(self.columns[n].title, f"{row[n]:<{wide}}") for n, wide in self.kept]
        found += [(self.columns[-1].title, sentence)] if sentence else []
        line: Line = []
        for title, cell in found:
            if line and self.room is not None and len(text(line)) + len(GAP) + len(cell.rstrip()) > self.room:
                yield line
                line = [("", INDENT)]
            line.append((title, cell + GAP))
        yield line


def text(line: Line) -> str:
    """Return a line without styles."""
    return "".join(cell for _, cell in line).rstrip()


def _says(rows: Sequence[Sequence[str]], n: int) -> bool:
    return any(row[n] not in NOTHING for row in rows)


def _wide(columns: Sequence[Column], rows: Sequence[Sequence[str]], n: int) -> int:
    return max(len(columns[n].title), *(len(row[n]) for row in rows)) if rows else len(columns[n].title)


def _taken(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int], *, last: bool = False) -> int:
    """Return the number of characters that the columns take.

    Args:
        last: True if nothing follows them.
    """
    return sum(_wide(columns, rows, n) + len(GAP) for n in kept) - (len(GAP) if last else 0)


def show_plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their titles, or nothing if there are no rows. The last column is a sentence, as in `lines`."""
    if not rows:
        return
    for found in lines(columns, [[one_line(cell) for cell in row] for row in rows], width()):
        for line in found:
            say(text(line))

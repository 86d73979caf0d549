"""Many hosts on a terminal: a table that is updated while they work, and stays at the end."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sparkwright import units
from sparkwright.console import grid, words
from sparkwright.console.events.board import Board, Row
from sparkwright.console.events.host_lines import HostLines
from sparkwright.console.events.live_lines import STYLES, printed
from sparkwright.console.terminal import styled_line, terminal
from sparkwright.visible import visible

#: lines of the terminal besides the table's rows
AROUND = 6
A_SECOND = 4
STYLE = {**STYLES, "muted": "dim"}
COLUMNS = grid.columns(("HOST", 0), ("VERDICT", 0), ("TIME", 2), ("PROGRESS", 1), ("STAGE", 0))


class HostTable(HostLines):
    """A live table with one row per host. Failures are explained above it."""

    details = False

    def __init__(self, *, console: Console | None = None, board: Board | None = None, together: bool = False) -> None:
        super().__init__(write=self._print, board=board, together=together)
        self._console = console or terminal()
        self._ended = False
        self._live = Live(
            get_renderable=self._table, console=self._console, refresh_per_second=A_SECOND, vertical_overflow="crop"
        )
        self._live.start()

    def close(self) -> None:
        self._ended = True
        self._live.vertical_overflow = "visible"
        self._live.stop()
        super().close()

    def ended(self, row: Row) -> None:
        """Explain a failure above the table. The row shows everything else."""
        if row.failure is not None and not row.like:
            super().ended(row)

    def _print(self, style: str, text: str) -> None:
        """Print a line above the table, or below it at the end."""
        printed(self._console, style, text)

    def _table(self) -> Text:
        """Return the table: as many rows as fit the terminal, and at the end all of them in full."""
        every = len(self.board.rows)
        room = every if self._ended else max(3, self._console.size.height - AROUND)
        rows = self.board.foremost(room)
        title, *shown = grid.lines(COLUMNS, [self._cells(row) for row in rows], self._console.width)
        lines = [Text(grid.text(line), style="dim") for line in title]
        for row, found in zip(rows, shown, strict=True):
            lines += [styled_line(line, "VERDICT", STYLE.get(row.style, "")) for line in found]
        if len(rows) < every:
            lines.append(Text(f"and {every - len(rows)} more; {self.board.totals()}", style="dim"))
        return Text("\n").join(lines)

    def _cells(self, row: Row) -> tuple[str, ...]:
        took_s = self.board.took_s(row)
        stage = words.as_of(row.like) if row.like else row.stage
        stage = visible(words.line(stage) if self._ended or row.ended else words.short(stage, 60))
        time = "" if took_s is None else units.duration(took_s)
        return visible(row.host), row.verdict, time, visible(row.progress), stage

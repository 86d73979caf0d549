"""Many hosts on a terminal: a table that lives while they work, and stays when they are through."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparkwright.console import words
from sparkwright.console.board import Board, Row
from sparkwright.console.host_lines import HostLines
from sparkwright.console.live import STYLES
from sparkwright.console.terminal import terminal
from sparkwright.plan.events import Event
from sparkwright.trust.visible import visible

#: lines of the terminal that are not the table's rows
AROUND = 6
A_SECOND = 4
STYLE = {**STYLES, "muted": "dim"}


class HostTable:
    """A `HostLines` whose lines of single hosts are rows of a table; failures are explained above it."""

    def __init__(self, *, console: Console | None = None, board: Board | None = None) -> None:
        self._console = console or terminal()
        self._board = board or Board()
        self._lines = _Said(write=self.write, board=self._board)
        self._ended = False
        self._live = Live(
            get_renderable=self._table, console=self._console, refresh_per_second=A_SECOND, vertical_overflow="crop"
        )
        self._live.start()

    def hosts(self, names: list[str]) -> None:
        """Who takes part."""
        self._lines.hosts(names)

    def on(self, event: Event) -> None:
        self._lines.on(event)

    def close(self) -> None:
        self._ended = True
        self._live.vertical_overflow = "visible"
        self._live.stop()
        self._lines.close()

    def write(self, style: str, text: str) -> None:
        """A line above the table, or below it at the end."""
        self._console.print(Text(visible(text).rstrip(), style=STYLE.get(style, "")), soft_wrap=True)

    def _table(self) -> Table:
        every = len(self._board.rows)
        room = every if self._ended else max(3, self._console.size.height - AROUND)
        rows = self._board.foremost(room)
        more = None if len(rows) == every else f"and {every - len(rows)} more; {self._board.totals()}"
        table = Table(box=None, pad_edge=False, header_style="dim", caption=more, caption_justify="left")
        for title in ("HOST", "STAGE", "PROGRESS"):
            table.add_column(title, no_wrap=title != "STAGE", overflow="ellipsis")
        table.add_column("TIME", justify="right", no_wrap=True)
        table.add_column("VERDICT", no_wrap=True)
        for row in rows:
            table.add_row(*self._cells(row))
        return table

    def _cells(self, row: Row) -> tuple[Text, ...]:
        took_s = self._board.took_s(row)
        style = STYLE.get(row.style, "")
        stage = words.short(row.stage, 200 if self._ended else 60)
        time = "" if took_s is None else words.duration(took_s)
        return Text(row.host), Text(stage), Text(row.progress), Text(time), Text(row.verdict, style=style)


class _Said(HostLines):
    def ended(self, row: Row) -> None:
        """Its row says it; a failure is explained above the table."""
        if row.failure is not None:
            super().ended(row)

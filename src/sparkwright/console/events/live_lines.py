"""Live terminal output of a run: coloured task lines above progress bars, or a table with a row per host."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.live import Live as Display
from rich.progress import BarColumn, Progress, TaskID, TimeRemainingColumn
from rich.text import Text

from sparkwright import units
from sparkwright.console import formatters, grid
from sparkwright.console.command_output import terminal_width, wrap_hanging
from sparkwright.console.events.host_lines import Board, HostLines, HostRow
from sparkwright.console.events.lines import TaskLines
from sparkwright.console.terminal import build_console, style_table_line, text_column
from sparkwright.protocol.events import Event
from sparkwright.visible import escape_invisible

STYLES = {
    "changed": "yellow",
    "failed": "bold red",
    "skipped": "cyan",
    "later": "blue",
    "muted": "dim",
    "removed": "red",
    **dict.fromkeys(("ok", "added"), "green"),
    **dict.fromkeys(("rescued", "ignored"), "magenta"),
    **dict.fromkeys(("title", "fix"), "bold"),
}
#: styles that colour only the first word of a line, which is the style's name
STATUS_WORDS = ("ok", "changed", "failed", "skipped", "ignored")

#: number of lines on the terminal that are not rows of the table
RESERVED_LINES = 6
REFRESHES_PER_SECOND = 4
COLUMNS = grid.columns(("HOST", 0), ("VERDICT", 0), ("TIME", 2), ("PROGRESS", 1), ("STAGE", 0))


class LiveTaskLines(TaskLines):
    """Prints coloured lines, with a progress bar per host while a task reports progress."""

    def __init__(self, *, diff: bool = False, console: Console | None = None) -> None:
        self._console = console or build_console()
        super().__init__(diff=diff, write=partial(print_line, self._console))
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            text_column("{task.fields[host]:>8}"),
            BarColumn(bar_width=28),
            text_column("{task.fields[amount]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            text_column("{task.description}", style="dim"),
            console=self._console,
            transient=True,
        )
        self._progress.start()

    def on(self, event: Event) -> None:
        if event["event"] == "progress":
            self._update_bar(event)
        else:
            if event["event"] in ("task_finished", "recap", "waiting"):
                self._remove_bar(event["host"])
            super().on(event)

    def pause(self) -> None:
        self._show_bars(visible=False)
        self._progress.stop()

    def resume(self) -> None:
        self._progress.start()
        self._show_bars(visible=True)

    def _show_bars(self, *, visible: bool) -> None:
        for bar in self._bars.values():
            self._progress.update(bar, visible=visible)

    def close(self) -> None:
        self._progress.stop()
        super().close()

    def _update_bar(self, event: Event) -> None:
        host = event["host"]
        if host not in self._bars:
            self._bars[host] = self._progress.add_task("", total=None, host=host, amount="")
        bar = self._bars[host]
        rate = self._progress._tasks[bar].speed or 0
        speed = f"  {units.format_rate(rate)}" if event["unit"] == "bytes" and rate else ""
        self._progress.update(
            bar,
            completed=event["done"],
            total=event["total"] or None,
            description=formatters.truncate_value(event["text"]),
            amount=formatters.format_progress(event["done"], event["total"], event["unit"]) + speed,
        )

    def _remove_bar(self, host: str) -> None:
        bar = self._bars.pop(host, None)
        if bar is not None:
            self._progress.remove_task(bar)
            self._progress.refresh()


def print_line(console: Console, style: str, text: str) -> None:
    """Print a line, wrapped between words. Continuation lines are aligned with the text after the first word."""
    first_line, *other_lines = wrap_hanging(
        escape_invisible(text).rstrip(), console.width if console.is_terminal else terminal_width()
    )
    console.print(style_line(style, first_line), soft_wrap=True)
    for line in other_lines:
        console.print(Text(line, "" if style in STATUS_WORDS else STYLES.get(style, "")), soft_wrap=True)


def style_line(style: str, text: str) -> Text:
    """Return a line in the colour of its style. If it begins with a status, only the status is coloured."""
    line = Text(escape_invisible(text).rstrip())
    if style in STATUS_WORDS and text.startswith(style):
        line.stylize(STYLES[style], 0, len(style))
    elif style in STYLES:
        line.stylize(STYLES[style])
    return line


class HostTable(HostLines):
    """A live table with one row per host. Failures are explained above it."""

    shows_details = False

    def __init__(self, *, console: Console | None = None, board: Board | None = None, is_cluster: bool = False) -> None:
        self._console = console or build_console()
        super().__init__(write=partial(print_line, self._console), board=board, is_cluster=is_cluster)
        self._is_closed = self._is_paused = False
        self._live = Display(
            get_renderable=self._table,
            console=self._console,
            refresh_per_second=REFRESHES_PER_SECOND,
            vertical_overflow="crop",
        )
        self._live.start()

    def pause(self) -> None:
        self._is_paused = True
        self._live.stop()

    def resume(self) -> None:
        self._is_paused = False
        self._live.vertical_overflow = "crop"
        self._live.start()

    def close(self) -> None:
        self._is_closed = True
        self._live.vertical_overflow = "visible"
        self._live.stop()
        super().close()

    def print_host(self, row: HostRow) -> None:
        """Explain a failure above the table; the host's row shows everything else."""
        if row.failure is not None and not row.same_as:
            super().print_host(row)

    def _table(self) -> Text:
        """Return the table with as many rows as fit on the terminal; after the run, with all rows in full."""
        if self._is_paused:
            return Text()
        host_count = len(self.board.rows)
        max_rows = host_count if self._is_closed else max(3, self._console.size.height - RESERVED_LINES)
        rows = self.board.select_rows(max_rows)
        title_lines, *row_lines = grid.format_rows(COLUMNS, [self._cells(row) for row in rows], self._console.width)
        lines = [Text(grid.plain_text(line), style="dim") for line in title_lines]
        for row, table_lines in zip(rows, row_lines, strict=True):
            lines += [style_table_line(line, "VERDICT", STYLES.get(row.style, "")) for line in table_lines]
        if len(rows) < host_count:
            lines.append(Text(f"and {host_count - len(rows)} more; {self.board.format_totals()}", style="dim"))
        return Text("\n").join(lines)

    def _cells(self, row: HostRow) -> tuple[str, ...]:
        elapsed_s = self.board.elapsed_s(row)
        stage = formatters.same_reason(row.same_as) if row.same_as else row.stage
        stage = escape_invisible(
            formatters.format_value(stage) if self._is_closed or row.ended else formatters.truncate_value(stage, 60)
        )
        elapsed_text = "" if elapsed_s is None else units.format_duration(elapsed_s)
        return escape_invisible(row.host), row.verdict, elapsed_text, escape_invisible(row.progress), stage

"""The table of `status`: one line a host; live on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.text import Text

from sparkwright import units
from sparkwright.console import grid, words
from sparkwright.console.status_row import Row
from sparkwright.console.terminal import styled_line, terminal
from sparkwright.engines.log import load_stages
from sparkwright.health.record import differs

DIGEST, COMMIT = 12, 8
STYLES = {
    **dict.fromkeys(("ok", "up"), "green"),
    **dict.fromkeys(("starting", "in progress"), "cyan"),
    "degraded": "yellow",
    "unknown": "dim",
    "unreachable": "bold red",
}
FINE = ("ok", "up")
COLUMNS = grid.columns(
    *(("HOST", 0), ("STATE", 0), ("RECIPE", 4), ("IMAGE", 8), ("ENGINE", 7), ("MODEL", 9)),
    *(("TOK/S", 3), ("UP", 5), ("LOAD", 10), ("MEMORY", 6), ("DRIFT", 1), ("CHECKED", 2), ("WHY", 0)),
)


def show(rows: Sequence[Row]) -> None:
    """Print the table once."""
    terminal().print(table(rows, grid.width()), soft_wrap=True)


class Screen:
    """The table in place, on a terminal."""

    def __init__(self) -> None:
        self._console = terminal()
        self._live = Live(console=self._console, auto_refresh=False, screen=True)
        self._live.start()

    def update(self, rows: Sequence[Row]) -> None:
        """Draw the newest answers."""
        at = Text(time.strftime("%H:%M:%S   Ctrl-C to quit"), style="dim")
        self._live.update(Group(table(rows, self._console.width), at), refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def table(rows: Sequence[Row], room: int | None = None) -> Text:
    """The table. room: columns of the terminal; None where nothing limits a line. States and their reasons are never cut."""
    cells = [_cells(row) for row in rows]
    title, *shown = grid.lines(COLUMNS, [[one[column.title] for column in COLUMNS] for one in cells], room)
    styles = [STYLES.get(row.state, "bold red") for row in rows]
    lines = [Text(grid.text(line), style="dim") for line in title]
    lines += [styled_line(line, "STATE", style) for style, found in zip(styles, shown, strict=True) for line in found]
    return Text("\n").join(lines)


def _cells(row: Row) -> dict[str, str]:
    return {
        "HOST": f"{row.host} (sandbox)" if row.sandbox and row.host != "sandbox" else row.host,
        "STATE": row.state,
        "RECIPE": row.recipe or "-",
        "IMAGE": row.digest.removeprefix("sha256:")[:DIGEST] or row.image or "-",
        "ENGINE": row.engine_version or "-",
        "MODEL": f"{row.model.rpartition('/')[2]}@{row.commit[:COMMIT]}" if row.model else "-",
        "TOK/S": _speed(row),
        "UP": "-" if row.up_s is None else units.age(row.up_s),
        "LOAD": load_stages.sentence(row.load_s) or "-",
        "MEMORY": _memory(row),
        "DRIFT": _drift(row),
        "CHECKED": _checked(row),
        "WHY": _why(row),
    }


def _speed(row: Row) -> str:
    """Now against the baseline; what nobody measured is a dash."""
    if row.tok_per_s is None and row.baseline_tok_per_s is None:
        return "-"
    now = "-" if row.tok_per_s is None else f"{row.tok_per_s:.1f}"
    return now if row.baseline_tok_per_s is None else f"{now} / {row.baseline_tok_per_s:.1f}"


def _memory(row: Row) -> str:
    if row.memory_available_bytes is None:
        return "-"
    total = "" if row.memory_total_bytes is None else f" of {row.memory_total_bytes / units.GIB:.0f}"
    return f"{units.gib(row.memory_available_bytes)}{total} GiB free"


def _drift(row: Row) -> str:
    behind = f"behind the lock: {', '.join(row.behind)}" if row.behind else ""
    drift = differs(row.drift) if row.drift else ""
    return "; ".join(filter(None, (drift, behind))) or ("-" if row.drift is None else "none")


def _checked(row: Row) -> str:
    if row.live:
        return "now" if row.scheduled else "now, no schedule"
    return "-" if row.checked_s is None else f"{units.age(row.checked_s)} ago"


def _why(row: Row) -> str:
    """Who works there, or what was interrupted, then why it is not fine; of one that seems fine, why no check speaks for it."""
    fine = "flapping: it changed state several times in the last checks" if row.flapping else ""
    answer = row.busy or row.interrupted or (fine if row.state == "ok" else row.why)
    return words.line("; ".join(filter(None, (answer, row.outdated if row.state in FINE and not row.busy else ""))))

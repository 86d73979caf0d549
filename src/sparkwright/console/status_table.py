"""The table of `status`: one line a host; live on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparkwright.console import words
from sparkwright.console.status_row import Row
from sparkwright.console.terminal import terminal

#: columns where no terminal tells its width
WIDE = (200, 24)
DIGEST, COMMIT = 12, 8
STYLES = {
    "ok": "green",
    "up": "green",
    "starting": "cyan",
    "in progress": "cyan",
    "degraded": "yellow",
    "unknown": "dim",
    "unreachable": "bold red",
}
FINE = ("ok", "up")
COLUMNS = ("HOST", "STATE", "RECIPE", "IMAGE", "VLLM", "MODEL", "TOK/S", "UP", "MEMORY", "DRIFT", "CHECKED", "WHY")


def show(rows: Sequence[Row]) -> None:
    """Print the table once; whole where no terminal limits it."""
    width = shutil.get_terminal_size(WIDE).columns if sys.stdout.isatty() else WIDE[0]
    terminal(width=width).print(table(rows))


class Screen:
    """The table in place, on a terminal."""

    def __init__(self) -> None:
        self._live = Live(console=terminal(), auto_refresh=False, screen=True)
        self._live.start()

    def update(self, rows: Sequence[Row]) -> None:
        """Draw the newest answers."""
        at = Text(time.strftime("%H:%M:%S   Ctrl-C ends this"), style="dim")
        self._live.update(Group(table(rows), at), refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def table(rows: Sequence[Row]) -> Table:
    """Columns that say nothing of any host are left out."""
    cells = [_cells(row) for row in rows]
    kept = [name for name in COLUMNS if name in ("HOST", "STATE") or any(one[name] not in ("", "-") for one in cells)]
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in kept:
        shown.add_column(name, no_wrap=name != "WHY", overflow="fold" if name == "WHY" else "ellipsis")
    for row, one in zip(rows, cells, strict=True):
        style = STYLES.get(row.state, "bold red")
        shown.add_row(*(Text(one[name], style=style if name == "STATE" else "") for name in kept))
    return shown


def _cells(row: Row) -> dict[str, str]:
    return {
        "HOST": f"{row.host} (sandbox)" if row.sandbox and row.host != "sandbox" else row.host,
        "STATE": row.state,
        "RECIPE": row.recipe or "-",
        "IMAGE": row.digest.removeprefix("sha256:")[:DIGEST] or row.image or "-",
        "VLLM": row.engine_version or "-",
        "MODEL": f"{row.model.rpartition('/')[2]}@{row.commit[:COMMIT]}" if row.model else "-",
        "TOK/S": _speed(row),
        "UP": "-" if row.up_s is None else age(row.up_s),
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
    total = "" if row.memory_total_bytes is None else f" of {row.memory_total_bytes / 2**30:.0f}"
    return f"{row.memory_available_bytes / 2**30:.1f}{total} GiB free"


def _drift(row: Row) -> str:
    if row.drift is None:
        return "-" if not row.behind else f"behind the lock: {', '.join(row.behind)}"
    said = [", ".join(row.drift)] if row.drift else []
    said += [f"behind the lock: {', '.join(row.behind)}"] if row.behind else []
    return "; ".join(said) or "none"


def _checked(row: Row) -> str:
    if row.live:
        return "now" if row.scheduled else "now, no schedule"
    return "-" if row.checked_s is None else f"{age(row.checked_s)} ago"


def _why(row: Row) -> str:
    """Who works there, or was interrupted, comes before why it is not fine, and that before why no check speaks for it."""
    return words.short(row.busy or row.interrupted or ("" if row.state in FINE else row.why) or row.outdated, 200)


def age(seconds: float) -> str:
    """12s, 5m, 3h, 2d: one unit is enough to see whether it was restarted."""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= factor:
            return f"{seconds / factor:.0f}{unit}"
    return f"{seconds:.0f}s"

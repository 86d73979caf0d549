"""The screen of `status --watch`: builds frames, paints the lines that changed, and reads keys."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rich.control import Control
from rich.text import Text

from sparkwright import units
from sparkwright.console import formatters, grid
from sparkwright.console.rows import HostStatus
from sparkwright.console.status_table import (
    format_check_age,
    format_throughput,
    gateway_lines,
    host_label,
    state_reason,
    state_style,
)
from sparkwright.console.terminal import build_console, style_table_line
from sparkwright.visible import escape_invisible

COLUMNS = grid.columns(
    *(("", 0), ("HOST", 0), ("STATE", 0), ("REQUESTS", 2), ("TOK/S", 1), ("ONE STREAM", 4)),
    *(("FREE", 3), ("GPU", 5), ("CHECKED", 6), ("RECIPE", 7), ("WHY", 0)),
)
KEY_HELP = {"up/down": "host", "l": "logs", "d": "diagnose", "h": "history", "r": "refresh", "q": "quit"}
MAX_HISTORY_LINES = 6
#: number of lines for the title, the keys, and the blank lines around them
RESERVED_LINES = 4
#: terminals that can't move the cursor
UNSUPPORTED_TERMINALS = ("", "dumb", "unknown")
ESCAPE = "\x1b"
#: names of keys, by the characters that a terminal sends
KEY_CODES = {
    f"{ESCAPE}[A": "up",
    f"{ESCAPE}[B": "down",
    f"{ESCAPE}OA": "up",
    f"{ESCAPE}OB": "down",
    "k": "up",
    "j": "down",
}
#: how long to wait for the rest of a key's bytes after an escape
ESCAPE_TIMEOUT_S = 0.05
ERASE_TO_LINE_END, CLEAR_SCREEN = f"{ESCAPE}[K", f"{ESCAPE}[2J"


@dataclass(frozen=True, slots=True)
class Traffic:
    """A server's current traffic. None means unknown."""

    #: number of running requests
    running: float | None = None
    #: number of waiting requests
    waiting: float | None = None
    #: throughput of all streams since the host's previous response
    tok_per_s: float | None = None
    #: temperature of the GPU, now or at the last check
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of a host's history."""

    #: seconds since the epoch
    at_s: float
    #: description of the event
    description: str


@dataclass(frozen=True, slots=True)
class View:
    """The data of a frame."""

    #: rows in inventory order
    rows: Sequence[HostStatus] = ()
    #: traffic by host
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    #: latest history entries by host
    history: Mapping[str, Sequence[HistoryEntry]] = field(default_factory=dict)
    #: index of the selected row
    selected_index: int = 0
    #: refresh interval
    interval_s: float = 5.0
    #: time of the last response as text; empty before the first one
    answered_at: str = ""

    @property
    def host(self) -> str:
        """The name of the selected host; empty while there are no rows."""
        return self.rows[self.selected_index].host if self.rows else ""


def screen_lines(view: View, width: int, height: int) -> list[Text]:
    """Return the lines of the screen, at most `height` lines of at most `width` characters."""
    footer = [*gateway_lines(view.rows, width), Text(), *_history_lines(view)]
    max_table_lines = max(3, height - RESERVED_LINES - len(footer))
    body = [*_table_lines(view, width, max_table_lines), *footer, Text(), _key_line(width)]
    screen = [_title(view), Text(), *body][:height]
    for line in screen:
        line.truncate(width, overflow="ellipsis")
    return screen


def _title(view: View) -> Text:
    counts = Counter(row.state for row in view.rows)
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    refresh_text = f"{view.answered_at}, every {view.interval_s:g} s" if view.answered_at else "querying ..."
    return Text.assemble(("sparkwright status", "bold"), f"  {refresh_text}  {states}")


def _key_line(width: int) -> Text:
    """Return the line that explains the keys. A narrow window shows only the first keys and `q`."""
    keys = list(KEY_HELP.items())
    while len(keys) > 1 and sum(len(key) + len(action) + 4 for key, action in keys) > width:
        del keys[-2]
    return Text.assemble(*(span for key, action in keys for span in ((key, "bold"), (f" {action}   ", "dim"))))


def _table_lines(view: View, width: int, max_lines: int) -> list[Text]:
    """Return the part of the table around the selected row. The lines of a row are never separated."""
    cells = [_cells(view, number, row) for number, row in enumerate(view.rows)]
    title_lines, *row_lines = grid.format_rows(
        COLUMNS, [[cell[column.title] for column in COLUMNS] for cell in cells], width
    )
    head_lines = [Text(grid.plain_text(line), style="dim") for line in title_lines]
    blocks = [
        [style_table_line(line, "STATE", state_style(row.state)) for line in lines]
        for row, lines in zip(view.rows, row_lines, strict=True)
    ]
    return head_lines + _visible_rows(blocks, view.selected_index, max_lines - len(head_lines))


def _visible_rows(blocks: Sequence[list[Text]], selected: int, max_lines: int) -> list[Text]:
    """Return the lines of as many rows as fit around the selected row, and a line with the number of hidden rows.

    blocks: lines of each row.
    """
    if sum(map(len, blocks)) <= max_lines:
        return [line for block in blocks for line in block]
    first = last = min(selected, len(blocks) - 1)
    used_lines = len(blocks[first])
    while True:
        fits_above = first > 0 and used_lines + len(blocks[first - 1]) < max_lines
        if fits_above:
            first -= 1
            used_lines += len(blocks[first])
        fits_below = last + 1 < len(blocks) and used_lines + len(blocks[last + 1]) < max_lines
        if fits_below:
            last += 1
            used_lines += len(blocks[last])
        if not fits_above and not fits_below:
            break
    hidden_count = len(blocks) - (last - first + 1)
    visible_lines = [line for block in blocks[first : last + 1] for line in block]
    return [*visible_lines, Text(f"  {hidden_count} more", style="dim")]


def _cells(view: View, number: int, row: HostStatus) -> dict[str, str]:
    traffic = view.traffic.get(row.host, Traffic())
    return {
        "": ">" if number == view.selected_index else " ",
        "HOST": host_label(row),
        "STATE": row.state,
        "REQUESTS": _format_requests(traffic),
        "TOK/S": "-" if traffic.tok_per_s is None else f"{traffic.tok_per_s:.1f}",
        "ONE STREAM": format_throughput(row),
        "FREE": "-" if row.memory_available_bytes is None else f"{units.format_gib(row.memory_available_bytes)} GiB",
        "GPU": "-" if traffic.temperature_c is None else f"{traffic.temperature_c:.0f} °C",
        "CHECKED": format_check_age(row),
        "RECIPE": row.recipe or "-",
        "WHY": escape_invisible(state_reason(row)),
    }


def _format_requests(traffic: Traffic) -> str:
    if traffic.running is None:
        return "-"
    return f"{traffic.running:.0f}" + (f" + {traffic.waiting:.0f} waiting" if traffic.waiting else "")


def _history_lines(view: View) -> list[Text]:
    if view.host not in view.history:
        return []
    entries = view.history[view.host][:MAX_HISTORY_LINES]
    heading = Text(
        f"{view.host}: latest history" if entries else f"{view.host}: nothing has been done to its server yet",
        style="dim",
    )
    lines = (
        f"  {units.format_time(entry.at_s)}  {escape_invisible(formatters.format_value(entry.description))}"
        for entry in entries
    )
    return [heading, *map(Text, lines)]


def is_supported() -> bool:
    """Return True if standard input and output are terminals that support a full screen."""
    can_move_cursor = os.environ.get("TERM", "") not in UNSUPPORTED_TERMINALS
    return can_move_cursor and sys.stdin.isatty() and sys.stdout.isatty()


class Screen:
    """A context manager for a full-screen view on the terminal, which is restored at the end.

    Only changed lines are sent, because the connection to the laptop's terminal may be slow.
    """

    def __init__(self) -> None:
        self._console = build_console()
        self._painted_lines: list[str] = []
        self._input = sys.stdin.fileno()
        self._original_settings: list[Any] | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._handlers: dict[signal.Signals, Any] = {}
        self._must_clear = False

    def __enter__(self) -> Screen:
        self._original_settings = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        handlers = {signal.SIGWINCH: self._on_resize, signal.SIGTSTP: self._on_suspend}
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._original_settings is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._original_settings)
        self._painted_lines = []

    @property
    def size(self) -> tuple[int, int]:
        """The current number of columns and lines."""
        return self._console.width, self._console.height

    def paint(self, lines: Sequence[Text]) -> None:
        """Replace the screen's content with these lines."""
        if self._must_clear:
            self._must_clear, self._painted_lines = False, []
            self._console.file.write(CLEAR_SCREEN)
        styled_lines = [self._render_ansi(line) for line in lines]
        for number in range(max(len(styled_lines), len(self._painted_lines))):
            line = styled_lines[number] if number < len(styled_lines) else ""
            if number >= len(self._painted_lines) or line != self._painted_lines[number]:
                self._console.control(Control.move_to(0, number))
                self._console.file.write(f"{line}{ERASE_TO_LINE_END}")
        self._console.file.flush()
        self._painted_lines = styled_lines

    def wait(self, timeout_s: float) -> str:
        """Return the name of the next key; empty after `wake`, a resize of the window, or the timeout."""
        readable, _, _ = select.select([self._input, self._wake_reader], [], [], max(0.0, timeout_s))
        if self._wake_reader in readable:
            os.read(self._wake_reader, 4096)
        return self._read_key() if self._input in readable else ""

    def wake(self) -> None:
        """End the current `wait`; can be called from any thread."""
        try:
            os.write(self._wake_writer, b".")
        except BlockingIOError:
            pass  # the pipe is full, so `wait` ends anyway

    def _read_key(self) -> str:
        sequence = os.read(self._input, 1).decode("ascii", "replace")
        while (
            sequence[:1] == ESCAPE and len(sequence) < 3 and select.select([self._input], [], [], ESCAPE_TIMEOUT_S)[0]
        ):
            sequence += os.read(self._input, 1).decode("ascii", "replace")
        return KEY_CODES.get(sequence, sequence) or "q"  # empty at the end of input, when the terminal was closed

    def _render_ansi(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True)
        return capture.get()

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        self._must_clear = True
        self.wake()

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: restore the terminal for the shell, and show the screen again after `fg`."""
        self.__exit__()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.__enter__()
        self._on_resize(number, frame)

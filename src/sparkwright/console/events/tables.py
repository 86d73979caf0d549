"""Tables at the end of a command: the checks of `verify` and the findings of `diagnose`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkwright.console import grid
from sparkwright.console.command_output import terminal_width
from sparkwright.protocol import event_shapes
from sparkwright.protocol.events import Event
from sparkwright.trust.shapes import OptionalField, ShapeError, line, validate

STYLES = {
    "proved": "ok",
    "ok": "plain",
    **dict.fromkeys(("failed", "found", "bad"), "failed"),
    **dict.fromkeys(("inconclusive", "differs", "possible", "warning"), "changed"),
}

FIX_PREFIX = "→ "
#: columns as (title, key in a row); all of them are shown at any width
Columns = Sequence[tuple[str, str]]

#: key of the rows in a module's data, and their columns, by module
TABLES: dict[str, tuple[str, Columns]] = {
    "verdict": (
        "rows",
        (("CHECK", "check"), ("VERDICT", "verdict"), ("FIGURE / BASELINE", "figure"), ("EVIDENCE", "evidence")),
    ),
    "diagnose": ("causes", (("VERDICT", "verdict"), ("CAUSE", "cause"), ("EVIDENCE", "evidence"))),
}


class ResultTables:
    """A subscriber that prints the tables once all hosts are done.

    Args:
        write: called with the style and the text of a line.
    """

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._write = write
        #: host, module and rows of each table
        self._tables: list[tuple[str, str, list[dict[str, Any]]]] = []

    def on(self, event: Event) -> None:
        if event["event"] == "task_finished" and event["module"] in TABLES:
            key, columns = TABLES[event["module"]]
            text_fields = dict.fromkeys([*(name for _, name in columns), "fix"], OptionalField(event_shapes.text, ""))
            shape = {**text_fields, "verdict": line}
            rows = list(_valid_rows((event.get("data") or {}).get(key), shape, f"{event['module']}.{key}"))
            if rows:
                self._tables.append((event["host"], event["module"], rows))

    def close(self) -> None:
        has_many_hosts = len({host for host, _, _ in self._tables}) > 1
        for host, module, rows in self._tables:
            self._write("", "")
            if has_many_hosts:
                self._write("title", host)
            for style, text in format_table(rows, TABLES[module][1], terminal_width()):
                self._write(style, text)


def _valid_rows(data: object, shape: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the valid rows of a host's response."""
    for row in data if isinstance(data, list) else ():
        with contextlib.suppress(ShapeError):
            yield from validate([row], [shape], name)


def format_table(rows: Sequence[dict[str, Any]], columns: Columns, max_width: int | None) -> list[tuple[str, str]]:
    """Return the style and text of each line. A fix is printed below its finding, with an arrow."""
    shown_columns = [(title, key) for title, key in columns if any(row.get(key) for row in rows)]
    cells = [[" ".join(str(row.get(key, "")).splitlines()) for _, key in shown_columns] for row in rows]
    for row, row_cells in zip(rows, cells, strict=True):
        row_cells[-1] += f"\n{FIX_PREFIX}{row['fix']}" if row.get("fix") else ""
    title_lines, *row_lines = grid.format_rows([grid.Column(title) for title, _ in shown_columns], cells, max_width)
    styled_lines = [("muted", grid.plain_text(line)) for line in title_lines]
    for row, lines_of_row in zip(rows, row_lines, strict=True):
        styled_lines += _style_row(
            STYLES.get(str(row["verdict"]), "muted"), [grid.plain_text(line) for line in lines_of_row]
        )
    return styled_lines


def _style_row(verdict: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a row's lines with their styles: the first line by verdict, then the evidence, then the fix."""
    style = "muted"
    for n, text in enumerate(texts):
        style = "fix" if text.lstrip().startswith(FIX_PREFIX) else style
        yield (style if n else verdict), text

"""Tables at the end of a command: what verify proved, what diagnose found. A subscriber; it prints when everyone is done."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from sparkwright.plan.events import Event
from sparkwright.plan.kinds import said
from sparkwright.trust.shapes import Usual, fitted, line

#: where no terminal tells its width
WIDE = (120, 24)
LEAST = 30
#: of a column but the last
WIDEST = 60
STYLES = {
    "proved": "ok",
    "failed": "failed",
    "found": "failed",
    "inconclusive": "changed",
    "possible": "changed",
    "ok": "plain",
    "bad": "failed",
    "warning": "changed",
}

#: module: where its rows are, and the columns: (title, key)
TABLES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "verdict": (
        "rows",
        (("CHECK", "check"), ("VERDICT", "verdict"), ("FIGURE / BASELINE", "figure"), ("EVIDENCE", "evidence")),
    ),
    "diagnose": ("causes", (("VERDICT", "verdict"), ("CAUSE", "cause"), ("EVIDENCE", "evidence"))),
}


class Tables:
    """write: where a line goes, with its style."""

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._write = write
        self._found: list[tuple[str, str, list[dict[str, Any]]]] = []

    def on(self, event: Event) -> None:
        if event["event"] == "task_finished" and event["module"] in TABLES:
            key, columns = TABLES[event["module"]]
            row = {**{name: Usual(said, "") for _, name in columns}, "verdict": line, "fix": Usual(said, "")}
            rows = fitted((event.get("data") or {}).get(key) or [], [row], f"{event['module']}.{key}")
            if rows:
                self._found.append((event["host"], event["module"], rows))

    def close(self) -> None:
        many = len({host for host, _, _ in self._found}) > 1
        for host, module, rows in self._found:
            self._write("", "")
            if many:
                self._write("title", host)
            for style, text in lines(rows, TABLES[module][1], shutil.get_terminal_size(WIDE).columns):
                self._write(style, text)


def lines(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]], width: int) -> list[tuple[str, str]]:
    """(style, text) of each line; the last column is folded, and a fix stands below it with an arrow. width: of the terminal."""
    kept = [(title, key) for title, key in columns if any(row.get(key) for row in rows)]
    *narrow, (last_title, last) = kept
    wide = [min(WIDEST, max(len(title), *(len(str(row[key])) for row in rows))) for title, key in narrow]
    start = sum(wide) + 2 * len(wide)
    room = max(LEAST, width - start)
    shown = [("muted", "  ".join([*(f"{title:<{w}}" for (title, _), w in zip(narrow, wide, strict=True)), last_title]))]
    for row in rows:
        style = STYLES.get(str(row["verdict"]), "muted")
        cells = "".join(f"{row[key]!s:<{w}}  " for (_, key), w in zip(narrow, wide, strict=True))
        folded = textwrap.wrap(str(row[last]), room) or [""]
        shown.append((style, f"{cells}{folded[0]}".rstrip()))
        shown += [("muted", " " * start + more) for more in folded[1:]]
        fix = textwrap.wrap(f"→ {row['fix']}", room) if row.get("fix") else []
        shown += [("fix", " " * start + more) for more in fix]
    return shown

"""The layout of a diagnosis: its sentence, then the causes with evidence and fix. Nothing is cut at any width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkwright.console import words
from sparkwright.console.events.live_lines import styled
from sparkwright.console.terminal import terminal
from sparkwright.errors import Exit
from sparkwright.program import typed_in
from sparkwright.visible import one_line

#: columns and lines without a terminal
WIDE = (120, 24)
LEAST = 40
#: verdicts whose causes are listed with evidence and fix
LISTED = ("found", "possible", "noted")
#: verdicts whose causes share a paragraph, with its title
SUMMED = {"unknown": "unknown", "excluded": "ruled out"}
STYLES = {"found": "failed", "possible": "changed"}
MARGIN = max(map(len, (*LISTED, *SUMMED.values()))) + 2


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print every host's diagnosis, separated by blank lines, with the host's name if there are several."""
    width, console = max(LEAST, shutil.get_terminal_size(WIDE).columns), terminal()
    for n, row in enumerate(map(typed_in, rows)):
        if n:
            console.print()
        for style, text in lines(row, width, named=len(rows) > 1):
            console.print(styled(style, text), soft_wrap=True)


def lines(row: Mapping[str, Any], width: int, *, named: bool) -> Iterator[tuple[str, str]]:
    """Yield style and text of each line.

    Args:
        width: columns of the terminal.
        named: put the host's name in front.
    """
    summary = one_line(str(row["summary"]))
    style = {Exit.OK: "ok", Exit.INCONCLUSIVE: "changed"}.get(Exit(row["exit"]), "failed")
    yield style, f"{row['host']}: {summary}" if named else summary
    causes = row["causes"]
    if row["fix"] and row["fix"] not in [cause["fix"] for cause in causes]:
        yield "fix", f"→ {row['fix']}"
    if causes:
        yield "", ""
    for verdict in LISTED:
        for cause in causes:
            if cause["verdict"] == verdict:
                yield from _cause(cause, width)
    for verdict, title in SUMMED.items():
        reported = "; ".join(_short(cause) for cause in causes if cause["verdict"] == verdict)
        if reported:
            yield from (("muted", text) for text in _wrapped(reported, title, width))
    if row["sandbox"]:
        yield "muted", words.simulated(row["host"])


def _cause(cause: Mapping[str, Any], width: int) -> Iterator[tuple[str, str]]:
    style = STYLES.get(str(cause["verdict"]), "plain")
    yield from ((style, text) for text in _wrapped(str(cause["cause"]), str(cause["verdict"]), width))
    yield from (("plain", text) for text in _wrapped(str(cause["evidence"]), "", width))
    if cause["fix"]:
        yield from (("fix", text) for text in _wrapped(f"→ {cause['fix']}", "", width))


def _short(cause: Mapping[str, Any]) -> str:
    """Return a cause as one line. A cause that was ruled out needs no evidence here; `--json` has it."""
    return f"{cause['cause']}: {cause['evidence']}" if cause["verdict"] == "unknown" else str(cause["cause"])


def _wrapped(text: str, title: str, width: int) -> list[str]:
    """Yield the text beside its title, wrapped to the width. Words longer than a line are broken."""
    indent = " " * MARGIN
    first = f"{title:<{MARGIN}}"
    return textwrap.wrap(one_line(text), width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)

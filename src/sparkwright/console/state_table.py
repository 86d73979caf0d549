"""The state that an engine logged, as lines for a person: field, value, and the line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.log.book import LogBook
from sparkwright.engines.log.reader import message
from sparkwright.engines.log.state import FIELDS

#: width of the column of values; evidence moves to the right of a longer value
VALUE_COLUMNS = 28
LEAST_EVIDENCE = 10


def lines(state: Mapping[str, Any], book: LogBook, columns: int | None) -> list[str]:
    """Return the table of an engine's state.

    Args:
        state: an EngineState as JSON.
        book: the log book of its engine.
        columns: width of the terminal, to which evidence is cut, but never a value; None without a terminal.
    """
    names = [name for name in (*FIELDS, *book.also) if name in state]
    rows = [(name, _shown(state[name]), message(state["evidence"].get(name, ""), book)) for name in names]
    rows += [(f"stage {name}", f"{seconds:g} s", "") for name, seconds in state["stage_s"].items()]
    rows += [("warning", "", message(text, book)) for text in state["warnings"]]
    widest = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, _ in rows if len(value) <= VALUE_COLUMNS)
    return [_row(f"{name:<{widest}}  {value:<{values}}", evidence, columns) for name, value, evidence in rows]


def _row(start: str, evidence: str, columns: int | None) -> str:
    if columns is None:
        return f"{start}  {evidence}".rstrip()
    room = columns - len(start) - 2
    return f"{start}  {_cut(evidence, room)}" if evidence and room >= LEAST_EVIDENCE else start.rstrip()


def _cut(evidence: str, room: int) -> str:
    """Return the beginning of the evidence. If it ends with an excerpt of a long line, return that end, which holds the value."""
    if len(evidence) <= room:
        return evidence
    head, dots, excerpt = evidence.partition(" ... ")
    if dots and len(excerpt) + 2 < room:
        return f"{head[: room - len(excerpt) - 2]}… {excerpt}"
    return evidence[: room - 1] + "…"


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)

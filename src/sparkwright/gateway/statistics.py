"""Gateway statistics by model, computed from HAProxy's: requests, queue and errors. There are no side effects."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.gateway.model import INTERIM, WAITING, model_of

#: limits on `show stat`, where a gateway with hundreds of servers has fewer rows and HAProxy 3 has 100 columns
MOST_ROWS, LONGEST_HEAD = 10_000, 16_384
BACKEND, FRONTEND = "BACKEND", "FRONTEND"
#: prefix of backends that hold a table instead of a model
TABLES = "-"
#: beginnings of a server's state in `show stat`
UP, DRAIN = "UP", "DRAIN"
STATES = ("up", "draining", "maintenance", "down", "unknown")


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of `show stat` by column, without truncated rows and without rows after one that csv can't read."""
    lines = text.removeprefix("# ").splitlines()
    names = next(csv.reader(lines[:1]), []) if lines and len(lines[0]) < LONGEST_HEAD else []
    found: list[dict[str, str]] = []
    try:
        for row in csv.reader(lines[1 : 1 + MOST_ROWS]):
            if len(row) == len(names):
                found.append(dict(zip(names, row, strict=True)))
    except csv.Error:
        return found
    return found


def models(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the statistics of each model.

    These are requests (all since HAProxy's start), running, queued, errors (5xx answers and requests refused in the queue) and
    servers.

    Args:
        rows: rows of `show stat`.
    """
    own = (row for row in rows if not row.get("pxname", "").startswith(TABLES))
    return [_model(row, rows) for row in own if row.get("svname") == BACKEND]


def _model(row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    name = row.get("pxname", "")
    others = (BACKEND, FRONTEND, WAITING)
    own = [
        entry
        for entry in rows
        if entry.get("pxname") == name and entry.get("svname") not in others and not _rests(entry)
    ]
    running = sum(_count(entry, "scur") for entry in own)
    return {
        "model": model_of(name),
        "requests": _count(row, "stot"),
        "running": running,
        "queued": max(0, _count(row, "scur") - running),
        "errors": _count(row, "hrsp_5xx"),
        "servers": [{"host": entry.get("svname", ""), **server(entry)} for entry in own],
    }


def _rests(row: Mapping[str, str]) -> bool:
    """Return True if the row is an interim server that is not in use."""
    return row.get("svname", "").endswith(INTERIM) and state(row.get("status", "")) == "maintenance"


def server(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a server's state and its running and total requests.

    Args:
        row: a row of `show stat`.
    """
    return {"state": state(row.get("status", "")), "running": _count(row, "scur"), "requests": _count(row, "stot")}


def state(written: str) -> str:
    """Return a server's state, one of STATES.

    Args:
        written: HAProxy's name for it, such as "UP 1/3", "DOWN (agent)", "MAINT", "DRAIN" or "no check".
    """
    first = written.split(" ")[0].upper()
    return {
        "UP": "up",
        "NO": "up",
        "DRAIN": "draining",
        "MAINT": "maintenance",
        "DOWN": "down",
        "NOLB": "draining",
    }.get(first, "unknown")


def _count(row: Mapping[str, str], name: str) -> int:
    text = row.get(name) or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

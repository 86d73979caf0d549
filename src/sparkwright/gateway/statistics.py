"""Gateway statistics by model, computed from HAProxy's: requests, queue and errors. There are no side effects."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.gateway.model import INTERIM_SUFFIX, WAITING_SERVER, model_name

#: limits on `show stat`, where a gateway with hundreds of servers has fewer rows and HAProxy 3 has 100 columns
MAX_ROWS, MAX_HEAD_CHARS = 10_000, 16_384
BACKEND, FRONTEND = "BACKEND", "FRONTEND"
#: prefix of backends that hold a table instead of a model
TABLE_PREFIX = "-"
#: beginnings of a server's state in `show stat`
UP, DRAIN = "UP", "DRAIN"
STATES = ("up", "draining", "maintenance", "down", "unknown")


def parse_stat(text: str) -> list[dict[str, str]]:
    """Return the rows of `show stat` by column, without truncated rows and without rows after one that csv can't read."""
    lines = text.removeprefix("# ").splitlines()
    names = next(csv.reader(lines[:1]), []) if lines and len(lines[0]) < MAX_HEAD_CHARS else []
    rows: list[dict[str, str]] = []
    try:
        for row in csv.reader(lines[1 : 1 + MAX_ROWS]):
            if len(row) == len(names):
                rows.append(dict(zip(names, row, strict=True)))
    except csv.Error:
        return rows
    return rows


def model_statistics(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the statistics of each model.

    These are requests (all since HAProxy's start), running, queued, errors (5xx answers and requests refused in the queue) and
    servers.

    Args:
        rows: rows of `show stat`.
    """
    model_rows = (row for row in rows if not row.get("pxname", "").startswith(TABLE_PREFIX))
    return [_model_statistics(row, rows) for row in model_rows if row.get("svname") == BACKEND]


def _model_statistics(row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    name = row.get("pxname", "")
    not_servers = (BACKEND, FRONTEND, WAITING_SERVER)
    server_rows = [
        entry
        for entry in rows
        if entry.get("pxname") == name and entry.get("svname") not in not_servers and not _is_unused_interim(entry)
    ]
    running = sum(_count(entry, "scur") for entry in server_rows)
    return {
        "model": model_name(name),
        "requests": _count(row, "stot"),
        "running": running,
        "queued": max(0, _count(row, "scur") - running),
        "errors": _count(row, "hrsp_5xx"),
        "servers": [{"host": entry.get("svname", ""), **server_statistics(entry)} for entry in server_rows],
    }


def _is_unused_interim(row: Mapping[str, str]) -> bool:
    """Return True if the row is an interim server that is not in use."""
    return row.get("svname", "").endswith(INTERIM_SUFFIX) and parse_state(row.get("status", "")) == "maintenance"


def server_statistics(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a server's state and its running and total requests.

    Args:
        row: a row of `show stat`.
    """
    return {
        "state": parse_state(row.get("status", "")),
        "running": _count(row, "scur"),
        "requests": _count(row, "stot"),
    }


def parse_state(status: str) -> str:
    """Return a server's state, one of STATES.

    Args:
        status: HAProxy's name for it, such as "UP 1/3", "DOWN (agent)", "MAINT", "DRAIN" or "no check".
    """
    first = status.split(" ")[0].upper()
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

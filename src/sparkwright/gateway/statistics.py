"""Statistics of a gateway by model, from HAProxy's `show stat`: requests, queue, errors and servers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.gateway.model import INTERIM_SUFFIX, WAITING_SERVER, model_name

#: limits of `show stat`; hundreds of servers need fewer rows, and HAProxy 3 has 100 columns
MAX_ROWS, MAX_HEADER_CHARS = 10_000, 16_384
BACKEND, FRONTEND = "BACKEND", "FRONTEND"
#: prefix of the names of backends that have a table instead of a model
TABLE_PREFIX = "-"
#: beginnings of a server's state in `show stat`
UP, DRAIN = "UP", "DRAIN"
STATES = ("up", "draining", "maintenance", "down", "unknown")


def parse_stat(text: str) -> list[dict[str, str]]:
    """Return the rows of `show stat` as mappings by column, without truncated rows, up to the first row that is not valid CSV."""
    lines = text.removeprefix("# ").splitlines()
    names = next(csv.reader(lines[:1]), []) if lines and len(lines[0]) < MAX_HEADER_CHARS else []
    rows: list[dict[str, str]] = []
    try:
        for row in csv.reader(lines[1 : 1 + MAX_ROWS]):
            if len(row) == len(names):
                rows.append(dict(zip(names, row, strict=True)))
    except csv.Error:
        return rows
    return rows


def model_statistics(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the statistics of each model from the rows of `show stat`.

    They are requests (since HAProxy's start), running, queued, errors (5xx answers, including those for requests that timed out
    in the queue) and servers.
    """
    model_rows = (row for row in rows if not row.get("pxname", "").startswith(TABLE_PREFIX))
    return [_model_statistics(row, rows) for row in model_rows if row.get("svname") == BACKEND]


def _model_statistics(row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    name = row.get("pxname", "")
    non_server_names = (BACKEND, FRONTEND, WAITING_SERVER)
    server_rows = [
        other_row
        for other_row in rows
        if other_row.get("pxname") == name
        and other_row.get("svname") not in non_server_names
        and not _is_unused_interim(other_row)
    ]
    running_requests = sum(_count(server_row, "scur") for server_row in server_rows)
    return {
        "model": model_name(name),
        "requests": _count(row, "stot"),
        "running": running_requests,
        "queued": max(0, _count(row, "scur") - running_requests),
        "errors": _count(row, "hrsp_5xx"),
        "servers": [
            {"host": server_row.get("svname", ""), **server_statistics(server_row)} for server_row in server_rows
        ],
    }


def _is_unused_interim(row: Mapping[str, str]) -> bool:
    return row.get("svname", "").endswith(INTERIM_SUFFIX) and parse_state(row.get("status", "")) == "maintenance"


def server_statistics(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a server's state and its running and total requests, from its row of `show stat`."""
    return {
        "state": parse_state(row.get("status", "")),
        "running": _count(row, "scur"),
        "requests": _count(row, "stot"),
    }


def parse_state(status: str) -> str:
    """Return the one of STATES that corresponds to HAProxy's status, such as "UP 1/3", "DOWN (agent)" or "no check"."""
    first_word = status.split(" ")[0].upper()
    return {
        "UP": "up",
        "NO": "up",
        "DRAIN": "draining",
        "MAINT": "maintenance",
        "DOWN": "down",
        "NOLB": "draining",
    }.get(first_word, "unknown")


def _count(row: Mapping[str, str], name: str) -> int:
    text = row.get(name) or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

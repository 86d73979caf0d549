"""The lab's measurements on this host: one file per cell, so that a finished cell is never measured twice.

~/.local/state/sparkwright/bench/SERIES/KEY.json; a series is one experiment, from its first command to its last cell.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

from sparkwright.host.state import StateFolder, newest_first

FOLDER = "bench"
KEPT_SERIES = 20


def read(state: StateFolder, series: str, key: str) -> dict[str, Any] | None:
    """Return a finished cell; None if it is not finished."""
    return state.read(f"{FOLDER}/{series}/{key}")


def write(state: StateFolder, series: str, key: str, cell: dict[str, Any]) -> None:
    """Record a finished cell, and remove the oldest series."""
    state.write(f"{FOLDER}/{series}/{key}", cell)
    for old in newest_first((state.path / FOLDER).iterdir())[KEPT_SERIES:]:
        shutil.rmtree(old, ignore_errors=True)


def found(state: StateFolder, series: str, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the finished ones of these cells, by key."""
    cells = {key: read(state, series, key) for key in keys}
    return {key: cell for key, cell in cells.items() if cell is not None}

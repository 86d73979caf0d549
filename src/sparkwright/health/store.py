"""The record on the disk: health.json, and health.jsonl that never grows beyond its bounds."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkwright.health.record import HISTORY, LATEST, ROTATE_BYTES, ROTATED, Record
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import private
from sparkwright.trust.redact import Redactor

LOCK = "health.lock"
#: fields whose words are the record's own
STATES = frozenset({"state", "seen", "before", "cure"})


@contextmanager
def one_at_a_time(state: StateFolder) -> Iterator[None]:
    """Two checks at once would each miss what the other remembers: the second waits."""
    with open(state.folder() / LOCK, "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write(state: StateFolder, record: Record, hidden: Redactor | None = None) -> None:
    """Append to the history, and replace the latest, without the secrets that `hidden` knows. Raises OSError."""
    hidden = hidden or Redactor()
    row = {key: value if key in STATES else hidden.value(value) for key, value in record.to_json().items()}
    line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
    path = state.path / HISTORY
    if _size(path) + len(line) > ROTATE_BYTES:
        _rotate(path)
    with open(path, "ab", opener=private.opener) as file:
        file.write(line)
    write_atomically(state.path / LATEST, json.dumps(row, indent=1).encode() + b"\n")


def _rotate(path: Path) -> None:
    """HISTORY becomes HISTORY.1 and so on; the oldest goes."""
    for n in range(ROTATED - 1, 0, -1):
        older = path.with_name(f"{path.name}.{n}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{n + 1}"))
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

"""The records on disk: health.json, and health.jsonl that never grows beyond its bounds."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkwright.health.record import HISTORY, LATEST, ROTATE_BYTES, ROTATED, Record
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import bounds, private
from sparkwright.trust.redact import Redactor

LOCK = "health.lock"
HEALING = "health-heal.lock"
#: fields with fixed values, which can't hold a secret
STATES = frozenset({"state", "seen", "before", "cure"})


@contextmanager
def one_at_a_time(state: StateFolder) -> Iterator[None]:
    """Wait for another check: two at once would each overwrite the other's history."""
    with open(state.memory_made() / LOCK, "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def healing(state: StateFolder) -> Iterator[bool]:
    """Yield True if this check is the only one that waits for the other members of its cluster, for the length of the block."""
    with open(state.memory_made() / HEALING, "a", opener=private.opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def write(state: StateFolder, record: Record, hidden: Redactor | None = None) -> None:
    """Append to the history, and replace the latest, without the secrets that `hidden` knows. Raises OSError."""
    hidden = hidden or Redactor()
    row = {key: value if key in STATES else hidden.value(value) for key, value in record.to_json().items()}
    line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
    path = state.memory_made() / HISTORY
    if path.exists() and path.stat().st_size + len(line) > ROTATE_BYTES:
        _rotate(path)
    with open(path, "ab", opener=private.opener) as file:
        file.write(line)
    write_atomically(state.memory / LATEST, json.dumps(row, indent=1).encode() + b"\n")


def latest(folder: Path) -> Record | None:
    """Return the last check in a host's state folder; None if there was none, or it can't be read."""
    try:
        return Record.from_json(bounds.parsed((folder / LATEST).read_bytes()))
    except (OSError, ValueError):
        return None


def history(folder: Path, since_s: float = 0.0) -> list[Record]:
    """Return the kept checks, oldest first. since_s: only from then on, seconds since the epoch."""
    files = [folder / f"{HISTORY}.{n}" for n in range(ROTATED, 0, -1)] + [folder / HISTORY]
    return [record for path in files for record in _parsed(path) if record.time_s >= since_s]


def _parsed(path: Path) -> Iterator[Record]:
    """Yield the records of JSON lines; invalid lines, such as a truncated one, are skipped."""
    with contextlib.suppress(OSError):
        for row in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                yield Record.from_json(bounds.parsed(row))


def _rotate(path: Path) -> None:
    """Rename HISTORY to HISTORY.1 and so on, and remove the oldest."""
    kept = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, ROTATED + 1))]
    for newer, older in reversed(list(itertools.pairwise(kept))):
        if newer.exists():
            newer.replace(older)

"""Records on disk: health.json and health.jsonl, and health-remembered.json with the state carried from check to check."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.health.judging.judge import WINDOW
from sparkwright.health.record import HISTORY, LATEST, ROTATE_BYTES, ROTATED, STATES, Record, Speed, State
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import bounds, private
from sparkwright.trust.redact import Redactor
from sparkwright.trust.shapes import built

HISTORY_NAME = "health-remembered"


@dataclass
class CheckHistory:
    """State carried from one health check to the next."""

    #: states of the last checks, oldest first
    seen: list[State] = field(default_factory=list)
    #: reported state
    state: State | None = None
    #: start of the reported state, in seconds since the epoch
    since_s: float = 0.0
    #: consecutive checks that recommended a restart
    cures: int = 0
    #: counters at the last check: time_s, start, running, token, generated, heartbeat
    counted: dict[str, Any] = field(default_factory=dict)
    #: identifier of the start (container and time) that has answered
    answered: str = ""
    #: the container whose crash loop was stopped: id, why, and since (the time when it had been verified)
    broken: dict[str, str] = field(default_factory=dict)
    #: the start for which the log proved this rank's place in its group, and the place
    joined: dict[str, Any] = field(default_factory=dict)
    #: last state that was notified by command or webhook
    notified: str = ""
    #: times of the restarts, in seconds since the epoch
    heals: list[float] = field(default_factory=list)
    #: consecutive restarts that did not help
    failed: int = 0
    #: last measured decode rate, as the fields of `Speed`
    speed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, state: StateFolder) -> CheckHistory:
        """Read the history that the last check saved. It is empty if there is none or it can't be read."""
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            found = state.read(HISTORY_NAME) or {}
            past = cls(**{name: value for name, value in found.items() if name in known})
        except (ValueError, TypeError, OSError):
            return cls()
        past.seen = [item for item in past.seen if item in STATES]
        past.state = past.state if past.state in STATES else None
        return past

    def stopped_for(self, container_id: str, good: Mapping[str, Any]) -> str:
        """Return the reason why this container was stopped for a crash loop; empty if it was not, or was verified since."""
        about = self.broken
        ours = about.get("id") == container_id and about.get("since", "") in ("", str(good.get("since", "")))
        return about.get("why", "") if ours else ""

    @staticmethod
    def stopped_by(state: StateFolder, container_id: str) -> str:
        """Return the id of the run that stopped this container and has not started it again; empty for none."""
        held = state.read("previous") or {}
        return str(held.get("run", "")) if container_id and held.get("id") == container_id else ""

    def still_since_s(self, start: str, heartbeat: float | None) -> float | None:
        """Return the time since which this start's counter has not moved while requests ran; None if it moved or is unknown.

        A token that the previous check did not get in time counts as a running request.
        """
        last = self.counted
        busy = last.get("running") or last.get("token") == "none"
        still = last.get("start") == start and last.get("heartbeat", last.get("generated")) == heartbeat
        return float(last["time_s"]) if busy and still and heartbeat is not None else None

    def save(self, state: StateFolder) -> None:
        """Save the history for the next check."""
        self.seen = self.seen[-WINDOW:]
        state.write(HISTORY_NAME, dataclasses.asdict(self))

    @property
    def last_speed(self) -> Speed:
        """The last measured decode rate."""
        return built(Speed, self.speed)


LOCK = "health.lock"
HEALING = "health-heal.lock"
#: fields with fixed values, which can't contain secrets
FIXED_FIELDS = frozenset({"state", "seen", "before", "cure"})


@contextmanager
def one_at_a_time(state: StateFolder) -> Iterator[None]:
    """Wait for another check to finish, because two at once would overwrite each other's history."""
    with open(state.memory_made() / LOCK, "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def healing(state: StateFolder) -> Iterator[bool]:
    """Yield True if no other check is waiting for the members of the cluster, for the duration of the block."""
    with open(state.memory_made() / HEALING, "a", opener=private.opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def write(state: StateFolder, record: Record, hidden: Redactor | None = None) -> None:
    """Append to the history and replace the latest record, hiding the secrets that `hidden` knows. Raises OSError."""
    hidden = hidden or Redactor()
    row = {key: value if key in FIXED_FIELDS else hidden.value(value) for key, value in record.to_json().items()}
    line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
    path = state.memory_made() / HISTORY
    if path.exists() and path.stat().st_size + len(line) > ROTATE_BYTES:
        _rotate(path)
    with open(path, "ab", opener=private.opener) as file:
        file.write(line)
    write_atomically(state.memory / LATEST, json.dumps(row, indent=1).encode() + b"\n")


def latest(folder: Path) -> Record | None:
    """Return the last check in a host's state folder, or None if there is none or it can't be read."""
    try:
        return Record.from_json(bounds.parsed((folder / LATEST).read_bytes()))
    except (OSError, ValueError):
        return None


def history(folder: Path, since_s: float = 0.0) -> list[Record]:
    """Return the recorded checks, oldest first. since_s: the earliest time, in seconds since the epoch."""
    files = [folder / f"{HISTORY}.{n}" for n in range(ROTATED, 0, -1)] + [folder / HISTORY]
    return [record for path in files for record in _parsed(path) if record.time_s >= since_s]


def _parsed(path: Path) -> Iterator[Record]:
    """Yield the records in JSON lines, skipping invalid lines such as truncated ones."""
    with contextlib.suppress(OSError):
        for row in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                yield Record.from_json(bounds.parsed(row))


def _rotate(path: Path) -> None:
    """Rename HISTORY to HISTORY.1 and so on, and remove the oldest file."""
    kept = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, ROTATED + 1))]
    for newer, older in reversed(list(itertools.pairwise(kept))):
        if newer.exists():
            newer.replace(older)

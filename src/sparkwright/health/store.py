"""Files of the health check: health.json, health.jsonl, and health-remembered.json with the state carried from check to check."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.health.judging.judge import FLAP_WINDOW_CHECKS
from sparkwright.health.record import (
    HISTORY_FILE,
    LATEST_FILE,
    MAX_HISTORY_FILE_BYTES,
    MAX_ROTATED_FILES,
    STATES,
    Record,
    Speed,
    State,
)
from sparkwright.host.records import stopped_server
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import bounds, private
from sparkwright.trust.redact import Redactor
from sparkwright.trust.shapes import build_dataclass

HISTORY_NAME = "health-remembered"
LOCK_FILE = "health.lock"
HEAL_LOCK_FILE = "health-heal.lock"
#: fields of a record with a fixed set of values, which can't contain secrets
FIXED_FIELDS = frozenset({"state", "seen", "before", "cure"})


@dataclass
class CheckHistory:
    """State carried from one health check to the next."""

    #: states of the last checks, oldest first
    seen: list[State] = field(default_factory=list)
    #: reported state
    state: State | None = None
    #: time since which this state has been reported, in seconds since the epoch
    since_s: float = 0.0
    #: consecutive checks that recommended a restart
    cures: int = 0
    #: counters at the last check: time_s, start, running, token, generated, heartbeat
    counted: dict[str, Any] = field(default_factory=dict)
    #: `start_id` of the last container start after which the server answered
    answered: str = ""
    #: the container whose crash loop was stopped: id, why, and since (the time of its last verification)
    broken: dict[str, str] = field(default_factory=dict)
    #: this rank's place in its group according to the log: start, rank, world and transport
    joined: dict[str, Any] = field(default_factory=dict)
    #: last state that the user was notified of
    notified: str = ""
    #: times of the restarts, in seconds since the epoch
    heals: list[float] = field(default_factory=list)
    #: consecutive restarts that did not help
    failed: int = 0
    #: last measured decode rate, as the fields of `Speed`
    speed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, state: StateFolder) -> CheckHistory:
        """Read the history that the last check saved, or return an empty one if it is missing or invalid."""
        field_names = {field.name for field in dataclasses.fields(cls)}
        try:
            stored = state.read(HISTORY_NAME) or {}
            loaded = cls(**{name: value for name, value in stored.items() if name in field_names})
        except (ValueError, TypeError, OSError):
            return cls()
        loaded.seen = [seen_state for seen_state in loaded.seen if seen_state in STATES]
        loaded.state = loaded.state if loaded.state in STATES else None
        return loaded

    def loop_stop_reason(self, container_id: str, verified_state: VerifiedState) -> str:
        """Return the reason why this container's crash loop was stopped; empty if it was not, or has been verified since."""
        broken_loop = self.broken
        is_same = broken_loop.get("id") == container_id and broken_loop.get("since", "") in (
            "",
            str(verified_state.since or ""),
        )
        return broken_loop.get("why", "") if is_same else ""

    @staticmethod
    def find_stopping_run(state: StateFolder, container_id: str) -> str:
        """Return the id of the run that stopped this container and did not start it again; empty if none did."""
        previous = stopped_server.load(state)
        is_stopped = container_id and previous.get("id") == container_id and not previous.get("started")
        return str(previous.get("run", "")) if is_stopped else ""

    def unchanged_since_s(self, current_start_id: str, heartbeat: float | None) -> float | None:
        """Return the time since which the heartbeat counter has been unchanged although requests were running, or None.

        A test request of the previous check that got no token in time counts as a running request.

        Args:
            current_start_id: `start_id` of the container. If it was different at the previous check, the result is None.
            heartbeat: current value of the counter.
        """
        last_check = self.counted
        had_requests = last_check.get("running") or last_check.get("token") == "none"
        is_unchanged = (
            last_check.get("start") == current_start_id
            and last_check.get("heartbeat", last_check.get("generated")) == heartbeat
        )
        return float(last_check["time_s"]) if had_requests and is_unchanged and heartbeat is not None else None

    def save(self, state: StateFolder) -> None:
        """Save the history for the next check."""
        self.seen = self.seen[-FLAP_WINDOW_CHECKS:]
        state.write(HISTORY_NAME, dataclasses.asdict(self))

    @property
    def last_speed(self) -> Speed:
        """The last measured decode rate; empty if it was never measured."""
        return build_dataclass(Speed, self.speed)


@contextmanager
def acquire_check_lock(state: StateFolder) -> Iterator[None]:
    """Hold the check lock for the duration of the block, because concurrent checks would overwrite the history."""
    with open(state.ensure_records_folder() / LOCK_FILE, "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def try_heal_lock(state: StateFolder) -> Iterator[bool]:
    """Hold the lock for a cluster's vote for the duration of the block. Yield False if another check holds it."""
    with open(state.ensure_records_folder() / HEAL_LOCK_FILE, "a", opener=private.opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def write_record(state: StateFolder, record: Record, redactor: Redactor | None = None) -> None:
    """Append a record to the history and replace the latest one, with secrets redacted. Raises OSError."""
    redactor = redactor or Redactor()
    row = {
        key: value if key in FIXED_FIELDS else redactor.redact_value(value) for key, value in record.to_json().items()
    }
    line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
    path = state.ensure_records_folder() / HISTORY_FILE
    if path.exists() and path.stat().st_size + len(line) > MAX_HISTORY_FILE_BYTES:
        _rotate(path)
    with open(path, "ab", opener=private.opener) as file:
        file.write(line)
    write_atomically(state.records_folder / LATEST_FILE, json.dumps(row, indent=1).encode() + b"\n")


def load_latest(folder: Path) -> Record | None:
    """Return the last check in a host's state folder, or None if it is missing or invalid."""
    try:
        return Record.from_json(bounds.parse_bounded_json((folder / LATEST_FILE).read_bytes()))
    except (OSError, ValueError):
        return None


def load_history(folder: Path, since_s: float = 0.0) -> list[Record]:
    """Return the recorded checks, oldest first. since_s: the earliest time, in seconds since the epoch."""
    files = [folder / f"{HISTORY_FILE}.{n}" for n in range(MAX_ROTATED_FILES, 0, -1)] + [folder / HISTORY_FILE]
    return [record for path in files for record in _read_records(path) if record.time_s >= since_s]


def _read_records(path: Path) -> Iterator[Record]:
    """Yield the records in JSON lines, skipping invalid lines such as truncated ones."""
    with contextlib.suppress(OSError):
        for row in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                yield Record.from_json(bounds.parse_bounded_json(row))


def _rotate(path: Path) -> None:
    """Rename HISTORY to HISTORY.1 and so on, and remove the oldest file."""
    files = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, MAX_ROTATED_FILES + 1))]
    for newer, older in reversed(list(itertools.pairwise(files))):
        if newer.exists():
            newer.replace(older)

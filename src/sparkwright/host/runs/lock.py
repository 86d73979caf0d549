"""The host's two locks: one for a single writer at a time, the other for a single measurement at a time.

The file `lock` is locked by the writer's process and contains a line about its owner: what (the playbook or action), who
(user@laptop), run, pid, since. The owner removes this line when it ends. If the line exists while the file is not locked, the run
was interrupted, for example by a kill or a reboot; `acquire` reports this to the next owner.

The file `measuring` is locked during a measurement, because two at a time on one host would distort each other. It contains the
run's id and the measurement's name.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO

from sparkwright import units
from sparkwright.errors import Inconclusive, Refused
from sparkwright.host.state import StateFolder
from sparkwright.trust import private
from sparkwright.trust.bounds import parse_bounded_json
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.shapes import MAX_TIME_S, Partial, integer, number_between, text
from sparkwright.visible import one_line

POLL_S = 0.2
#: minimum wait for the lock, because a process that only inspects it holds it for a moment; and the poll interval during it
MIN_LOCK_WAIT_S, MIN_LOCK_WAIT_POLL_S = 0.25, 0.02
NOTE_INTERVAL_S = 60.0
MEASUREMENT_FILE = "measuring"
#: longer than a `verify` takes
MEASUREMENT_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The current or last owner of the lock."""

    #: the playbook, or another action such as "stopping a crash loop"
    what: str = "something"
    who: str = "somebody"
    run: str = ""
    pid: int = 0
    #: seconds since the epoch
    since: float = 0.0

    def __str__(self) -> str:
        if not self.since:
            return "another run, which has not recorded its name yet"
        return f"{self.what} by {self.who}, since {units.format_time(self.since)} (run {self.run or 'unknown'})"


_OWNER_SHAPE = Partial(
    {
        "what": text,
        "who": text,
        "pid": integer,
        "since": number_between(-MAX_TIME_S, MAX_TIME_S),
        "run": (frozenset(("",)), PATH_COMPONENT),
    },
    strict=True,
)


@contextmanager
def acquire(
    state: StateFolder,
    owner: LockOwner,
    *,
    host: str,
    wait_s: float = 0,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[LockOwner | None]:
    """Hold the lock for the block. Yields the previous owner if its run was interrupted, otherwise None.

    Args:
        wait_s: how long to wait for another owner to release the lock.
        note: called with a message about the other owner during the wait.

    Raises:
        Refused: The lock was not released within wait_s.
    """
    with _open_file(state) as file:
        _lock_file(file, host, wait_s, note)
        interrupted_owner = _read_owner(file)
        replace_content(file, json.dumps(asdict(owner)))
        try:
            yield interrupted_owner
        finally:
            replace_content(file, "")


def inspect(state: StateFolder) -> tuple[LockOwner | None, bool]:
    """Return the lock's owner and whether it is running; (None, False) if the lock is free and no run was interrupted."""
    try:
        with (state.path / "lock").open("r", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_owner(file) or LockOwner(), True
            return _read_owner(file), False
    except FileNotFoundError:
        return None, False


def wait_for_release(state: StateFolder, *, host: str, wait_s: float, note: Callable[[str], None]) -> None:
    """Wait until the lock is free. Raises Inconclusive after wait_s."""
    deadline_s, has_reported = time.monotonic() + wait_s, False
    while True:
        owner, is_alive = inspect(state)
        if not is_alive:
            return
        if time.monotonic() >= deadline_s:
            message = f"{host} is in use, and measurements do not run during another run: {owner}."
            raise Inconclusive(message, fix=_wait_fix(host))
        if not has_reported:
            note(f"waiting: {owner}")
            has_reported = True
        time.sleep(POLL_S)


def clear_owner(state: StateFolder) -> bool:
    """Remove the line that an interrupted run left. Returns False if the lock is held."""
    with _open_file(state) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        replace_content(file, "")
    return True


def _wait_fix(host: str) -> str:
    return f"Follow it with `invoke attach --host {host}`, or wait for the lock with `--wait`."


def _open_file(state: StateFolder) -> IO[str]:
    """Open the lock file, to which only this user has access: whoever can open it can lock it."""
    path = state.folder() / "lock"
    private.restrict(path)
    return open(path, "a+", opener=private.opener)


def _lock_file(file: IO[str], host: str, wait_s: float, note: Callable[[str], None]) -> None:
    started_s, reported_s = time.monotonic(), -NOTE_INTERVAL_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= started_s + max(wait_s, MIN_LOCK_WAIT_S):
                owner = _read_owner(file) or LockOwner()
                raise Refused(f"{host} is locked: {owner}.", fix=_wait_fix(host)) from None
        if time.monotonic() < started_s + MIN_LOCK_WAIT_S:
            time.sleep(MIN_LOCK_WAIT_POLL_S)
            continue
        if time.monotonic() - reported_s >= NOTE_INTERVAL_S:
            reported_s = time.monotonic()
            note(f"waiting: {_read_owner(file) or LockOwner()}")
        time.sleep(POLL_S)


def _read_owner(file: IO[str]) -> LockOwner | None:
    file.seek(0)
    try:
        fields = _OWNER_SHAPE.valid_part(parse_bounded_json(file.read()))
    except (OSError, ValueError):
        return None
    return LockOwner(**fields) if fields else None


def replace_content(file: IO[str], text: str) -> None:
    """Replace the content of a lock file. Errors, such as a full disk, are only printed: the lock works without the content."""
    try:
        file.seek(0)
        file.truncate(0)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    except OSError:
        print("cannot write the lock file", flush=True)


@contextmanager
def acquire_measurement(
    state: StateFolder,
    run: str,
    measurement: str,
    *,
    wait_s: float = MEASUREMENT_WAIT_S,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Hold the measurement lock for the block, unless this run already holds it.

    Args:
        run: the run's id.
        measurement: name of the measurement, for messages to other runs.

    Raises:
        Inconclusive: Another measurement did not end within wait_s.
    """
    with open(state.folder() / MEASUREMENT_FILE, "a+", opener=private.opener) as file:
        if not _lock_measurement(file, run, wait_s, note):
            yield
            return
        replace_content(file, f"{run} {measurement}")
        try:
            yield
        finally:
            replace_content(file, "")


def _lock_measurement(file: IO[str], run: str, wait_s: float, note: Callable[[str], None]) -> bool:
    """Take the lock. Returns False if this run already holds it."""
    deadline_s, has_reported = time.monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            file.seek(0)
            other_run, _, measurement = one_line(file.read(500).strip(), max_chars=200).partition(" ")
        if run and other_run == run:
            return False
        message = f"{measurement or 'another measurement'} is in progress on this host (run {other_run or 'unknown'})"
        if time.monotonic() >= deadline_s:
            raise Inconclusive(f"{message}; measurements do not run in parallel.", fix="Try again when it has ended.")
        if not has_reported:
            note(f"waiting: {message}")
            has_reported = True
        time.sleep(POLL_S)

"""A lock for measurements: two at a time on one host would both be meaningless.

The file `measuring` in the state folder is locked during a measurement, and its line names it: run, what. The lock is released
when the process ends.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from sparkwright.errors import Inconclusive
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from sparkwright.trust import private
from sparkwright.visible import one_line

FILE = "measuring"
POLL_S = 0.2
#: how long a module waits: longer than a `verify` takes
WAIT_S = 60.0


@contextmanager
def alone(
    state: StateFolder, run: str, what: str, *, wait_s: float = WAIT_S, note: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Hold the measurement lock for the block; a run that holds it already continues.

    Args:
        run: its id.
        what: the measurement, for others that wait.

    Raises:
        Inconclusive: Another measurement, named in the message, did not end within wait_s.
    """
    with open(state.folder() / FILE, "a+", opener=private.opener) as file:
        if not _taken(file, run, wait_s, note):
            yield
            return
        lock.write_line(file, f"{run} {what}")
        try:
            yield
        finally:
            lock.write_line(file, "")


def _taken(file: IO[str], run: str, wait_s: float, note: Callable[[str], None]) -> bool:
    """Take the lock. Returns False if this run holds it already."""
    deadline_s, reported = time.monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            other, what = _read(file)
        if run and other == run:
            return False
        message = f"{what or 'another measurement'} is in progress on this host (run {other or 'unknown'})"
        if time.monotonic() >= deadline_s:
            raise Inconclusive(f"{message}; measurements do not run in parallel.", fix="Try again when it has ended.")
        if not reported:
            note(f"waiting: {message}")
            reported = True
        time.sleep(POLL_S)


def _read(file: IO[str]) -> tuple[str, str]:
    file.seek(0)
    run, _, what = one_line(file.read(500).strip(), at_most=200).partition(" ")
    return run, what

"""Root causes in a cluster: members that failed on their own, and members that failed because of another."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkwright.console.events.board import Row
from sparkwright.engines.engine import USUAL, of

#: message of a run about another member that failed or was lost
ANOTHER = re.compile(r"(?:lost )?([A-Za-z0-9_.-]{1,64}) \(rank \d{1,3}\)")

#: message of a run whose own rank exited
ENDED = re.compile(r"rank \d{1,3} exited")


def first(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of members that have ended, the root cause first.

    A rank that exited comes before a server that answered with an error, and both come before members that lost another.
    """
    return sorted(rows, key=lambda row: (because_of_another(row), not ENDED.match(_message(row))))


def _message(row: Row) -> str:
    return row.failure["msg"] if row.failure else ""


def because_of_another(row: Row) -> bool:
    """Return True if a member failed because of another."""
    message = _message(row)
    named, parallel = ANOTHER.match(message), of(USUAL).parallel
    return bool((named and named[1] != row.host) or (parallel and parallel.of_another(message)))

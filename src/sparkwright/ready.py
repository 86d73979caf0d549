"""Readiness of sockets and pipes. `select.select` refuses descriptors from 1,024 on, which a busy process has."""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """A socket, or a file of a pipe."""

    def fileno(self) -> int:
        """Return its descriptor."""


One = TypeVar("One", bound=HasFileno | int)


def readable(ones: Sequence[One], timeout_s: float = 0, *, writing: Iterable[HasFileno] = ()) -> list[One]:
    """Return the items that have something to read or have ended, as soon as there is one; none after `timeout_s`.

    writing: these also end the wait once they accept more. Raises ValueError for a closed one.
    """
    poll = select.poll()
    numbers = {_number(item): item for item in ones}
    takers = {_number(connection) for connection in writing}
    for number in numbers.keys() | takers:
        poll.register(number, (select.POLLIN if number in numbers else 0) | (select.POLLOUT if number in takers else 0))
    answered = poll.poll(max(0.0, timeout_s) * 1000)
    return [numbers[number] for number, what in answered if number in numbers and what & ~select.POLLOUT]


def _number(connection: HasFileno | int) -> int:
    return connection if isinstance(connection, int) else connection.fileno()

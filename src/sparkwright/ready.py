"""Readiness of sockets and pipes. `select.select` refuses descriptors from 1,024 on, which a busy process has."""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """A socket, or a file of a pipe."""

    def fileno(self) -> int:
        """Return its descriptor."""


Item = TypeVar("Item", bound=HasFileno | int)


def wait_for_readable(items: Sequence[Item], timeout_s: float = 0, *, writers: Iterable[HasFileno] = ()) -> list[Item]:
    """Return the items that have something to read or have ended, as soon as there is one; none after `timeout_s`.

    writers: these also end the wait once they accept more. Raises ValueError for a closed one.
    """
    poll = select.poll()
    by_descriptor = {_descriptor(item): item for item in items}
    writer_descriptors = {_descriptor(connection) for connection in writers}
    for number in by_descriptor.keys() | writer_descriptors:
        poll.register(
            number,
            (select.POLLIN if number in by_descriptor else 0) | (select.POLLOUT if number in writer_descriptors else 0),
        )
    events = poll.poll(max(0.0, timeout_s) * 1000)
    return [by_descriptor[number] for number, what in events if number in by_descriptor and what & ~select.POLLOUT]


def _descriptor(connection: HasFileno | int) -> int:
    return connection if isinstance(connection, int) else connection.fileno()

"""Wait for sockets and pipes, without `select.select`'s limit to descriptors below 1,024."""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """A socket or one end of a pipe."""

    def fileno(self) -> int: ...


Item = TypeVar("Item", bound=HasFileno | int)


def wait_for_readable(items: Sequence[Item], timeout_s: float = 0, *, writers: Iterable[HasFileno] = ()) -> list[Item]:
    """Wait until an item is readable or closed by its peer, and return all readable or closed items; empty after `timeout_s`.

    Raises ValueError for an item that this process has closed. writers: the wait also ends when one of these becomes writable.
    """
    poll = select.poll()
    by_descriptor = {item if isinstance(item, int) else item.fileno(): item for item in items}
    writer_descriptors = {writer.fileno() for writer in writers}
    for descriptor in by_descriptor.keys() | writer_descriptors:
        read_mask = select.POLLIN if descriptor in by_descriptor else 0
        write_mask = select.POLLOUT if descriptor in writer_descriptors else 0
        poll.register(descriptor, read_mask | write_mask)
    return [
        by_descriptor[descriptor]
        for descriptor, events in poll.poll(max(0.0, timeout_s) * 1000)
        if descriptor in by_descriptor and events & ~select.POLLOUT
    ]

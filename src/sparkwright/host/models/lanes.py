"""Parallel use of a peer's addresses: each half of a ConnectX-7 port has an address, and about half of its bandwidth."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sparkwright.host.models.hub import Source


class SourceQueue:
    """A scheduler that assigns each file to the address with the fewest bytes in transfer."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._under_way = dict.fromkeys(sources, 0)
        self._guard = threading.Lock()

    def take(self, size: int) -> Source:
        """Return the address for a file of this many bytes."""
        with self._guard:
            least_busy = min(self._under_way, key=lambda source: self._under_way[source])
            self._under_way[least_busy] += size
            return least_busy

    def done(self, source: Source, size: int) -> None:
        """Record that a file was transferred."""
        with self._guard:
            if source in self._under_way:
                self._under_way[source] -= size

    def lose(self, source: Source) -> bool:
        """Stop using an address. Returns False if it is the last one, which stays: the caller decides about a retry."""
        with self._guard:
            if len(self._under_way) > 1:
                self._under_way.pop(source, None)
            return source not in self._under_way


def by_address(files: Sequence[Mapping[str, Any]], came_from: Mapping[str, str]) -> dict[str, int]:
    """Return the number of bytes that each address delivered.

    Args:
        came_from: the URL of each file, by path; of a file from two addresses, the last.
    """
    found: dict[str, int] = {}
    for file in files:
        if url := came_from.get(file["path"]):
            address = urlsplit(url).hostname or url
            found[address] = found.get(address, 0) + int(file["size_bytes"])
    return dict(sorted(found.items()))

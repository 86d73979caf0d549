"""The addresses of one peer, used side by side: each half of a ConnectX-7 port has an address, and about half of its rate."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sparkwright.host.models.hub import Source


class SourceQueue:
    """Deals files out to the addresses of a source, each to the one with the fewest bytes under way."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._under_way = dict.fromkeys(sources, 0)
        self._guard = threading.Lock()

    def take(self, size: int) -> Source:
        """Return the address for a file of this many bytes."""
        with self._guard:
            selection = min(self._under_way, key=lambda source: self._under_way[source])
            self._under_way[selection] += size
            return selection

    def done(self, source: Source, size: int) -> None:
        """A file has come."""
        with self._guard:
            if source in self._under_way:
                self._under_way[source] -= size

    def lose(self, source: Source) -> bool:
        """An address is used no more; whether another is left. The last one stays: whether that is worth a try, others know."""
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

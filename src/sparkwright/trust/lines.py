"""Bytes from outside as lines, in chunks of any size: linear time, and bounded memory for a line without an end."""

from __future__ import annotations

from collections.abc import Iterator


class Lines:
    """Splits bytes into lines.

    at_most: bytes of a line that are kept; the rest of a longer one is skipped.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._pending: list[bytes] = []
        self._kept = 0
        self._over = 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the lines that end in these bytes, without their newline, each with the number of its skipped bytes."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            yield self._taken()
            start = end + 1
        self._keep(data[start:])

    def end(self) -> Iterator[tuple[bytes, int]]:
        """Yield what follows the last newline, if anything does."""
        if self._kept:
            yield self._taken()

    def _keep(self, piece: bytes) -> None:
        kept = piece[: self._at_most - self._kept]
        self._over += len(piece) - len(kept)
        self._kept += len(kept)
        if kept:
            self._pending.append(kept)

    def _taken(self) -> tuple[bytes, int]:
        line, over = b"".join(self._pending), self._over
        self._pending, self._kept, self._over = [], 0, 0
        return line, over

"""The guard's last samples in a file of fixed size that survives the host: a header, then a ring of lines.

The file is written once before there is any danger. Later writes change its bytes in place (O_DSYNC), so they need no new block
of the file system.
"""

from __future__ import annotations

import os

HEADER_BYTES, LINE_BYTES, LINES = 2048, 64, 1024
FILE_BYTES = HEADER_BYTES + LINES * LINE_BYTES
#: the ring's samples: seconds since the epoch, available, free (KiB), stall (ms since boot)
FORM = "%.3f %d %d %d"


class Ring:
    """A ring file of samples. `add` is for the thread that samples and touches no file; `flush` is for another thread.

    Args:
        path: of the file, which is truncated.
        about: initial values of the header, by name.
    """

    __slots__ = ("_body", "_count", "_file", "_flushed", "about", "path")

    def __init__(self, path: str, about: dict[str, str]) -> None:
        self.path, self.about = path, about
        self._body = bytearray(LINES * LINE_BYTES)
        self._count = self._flushed = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DSYNC
        self._file = os.open(path, flags, 0o600)
        os.pwrite(self._file, self._header() + self._body, 0)
        os.fsync(self._file)

    def add(self, time_s: float, available: int, free: int, stall_s: float) -> None:
        """Add a sample in memory; `flush` writes it. The time is in seconds since the epoch."""
        line = (FORM % (time_s, available >> 10, free >> 10, stall_s * 1000)).encode()
        at = self._count % LINES * LINE_BYTES
        self._body[at : at + LINE_BYTES] = line[: LINE_BYTES - 1].ljust(LINE_BYTES - 1) + b"\n"
        self._count += 1

    def say(self, name: str, value: str) -> None:
        """Set a row of the header."""
        self.about[name] = value

    def flush(self) -> None:
        """Write new samples to disk. Raises OSError."""
        count = self._count
        new = min(count - self._flushed, LINES)
        first = (count - new) % LINES
        parts = [(first, min(first + new, LINES)), (0, first + new - LINES)]
        for begin, end in parts:
            if end > begin:
                piece = bytes(self._body[begin * LINE_BYTES : end * LINE_BYTES])
                os.pwrite(self._file, piece, HEADER_BYTES + begin * LINE_BYTES)
        self._flushed = count
        os.pwrite(self._file, self._header(), 0)

    def _header(self) -> bytes:
        rows = "".join(f"{name} {' '.join(value.split())[:200]}\n" for name, value in self.about.items())
        return rows.encode(errors="replace")[: HEADER_BYTES - 1].ljust(HEADER_BYTES - 1) + b"\n"


def read(path: str) -> tuple[dict[str, str], list[tuple[float, int, int, float]]]:
    """Return the header and the samples of a ring, oldest first.

    A sample is (seconds since the epoch, available bytes, free bytes, stall seconds). Damaged lines are left out. Raises OSError.
    """
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES)
    rows = data[:HEADER_BYTES].decode(errors="replace").splitlines()
    about = dict(row.partition(" ")[::2] for row in rows if row.strip())
    samples = []
    for row in data[HEADER_BYTES:].split(b"\n"):
        try:
            time_s, available, free, stall_ms = row.split()
            samples.append((float(time_s), int(available) << 10, int(free) << 10, int(stall_ms) / 1000))
        except ValueError:
            continue
    return about, sorted(samples)

"""Readers of /proc/meminfo and /proc/pressure/memory into buffers that are allocated beforehand."""

from __future__ import annotations

import os

BUFFER_BYTES = 8192
#: rows that a sample needs, in the kernel's order
TOTAL, FREE, AVAILABLE = b"MemTotal:", b"MemFree:", b"MemAvailable:"
#: pages that must be written before they can be reused; MemAvailable includes them
UNWRITTEN = (b"Dirty:", b"Writeback:")
STALL = b"full "


class Meter:
    """A reader of the host's memory. Files stay open and the buffer is reused; a sample allocates only numbers.

    Args:
        root: prefix of /proc; empty on a real host. A simulated host replaces its files, so they are opened for each sample.
    """

    __slots__ = ("_buffer", "_meminfo", "_path", "_pressure", "available", "free", "stall_s", "total")

    def __init__(self, root: str = "") -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._path = f"{root}/proc/meminfo"
        self._meminfo = -1 if root else os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._pressure = -1
        if not root:
            try:
                self._pressure = os.open("/proc/pressure/memory", os.O_RDONLY | os.O_CLOEXEC)
                os.preadv(self._pressure, [self._buffer], 0)
            except OSError:
                self._pressure = -1
        self.total = self.available = self.free = 0
        self.stall_s = 0.0
        self.read()

    def read(self) -> None:
        """Take a sample: `total`, `available` and `free` in bytes, `stall_s` in seconds since the boot.

        `available` is MemAvailable without unwritten pages. Raises OSError.
        """
        size, text = self._filled(self._meminfo), self._buffer
        self.total, self.free = _bytes(text, TOTAL, size), _bytes(text, FREE, size)
        unwritten = _bytes(text, UNWRITTEN[0], size) + _bytes(text, UNWRITTEN[1], size)
        self.available = max(0, _bytes(text, AVAILABLE, size) - unwritten)
        if self._pressure >= 0:
            size = os.preadv(self._pressure, [self._buffer], 0)
            self.stall_s = _stall_s(self._buffer, size)

    def _filled(self, file: int) -> int:
        """Read /proc/meminfo into the buffer. Return its size."""
        opened = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC) if file < 0 else file
        try:
            return os.preadv(opened, [self._buffer], 0)
        finally:
            if file < 0:
                os.close(opened)


def boot(root: str = "") -> str:
    """Return an id of this boot: the kernel's boot id and the start of the first process.

    The latter differs where a container stands for the host.
    """
    found = []
    for path in (f"{root}/proc/sys/kernel/random/boot_id", f"{root}/proc/1/stat"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        found.append(text.rpartition(")")[2].split()[19] if path.endswith("stat") else text)
    return ":".join(found)


def _bytes(text: bytearray, name: bytes, size: int) -> int:
    """Return a row of /proc/meminfo in bytes, or 0 if it is missing."""
    at = text.find(name, 0, size)
    if at < 0:
        return 0
    end = text.find(b"k", at + len(name), size)
    return int(text[at + len(name) : end]) * 1024 if end > 0 else 0


def _stall_s(text: bytearray, size: int) -> float:
    """Return `total` of the line "full" in /proc/pressure/memory, in seconds."""
    at = text.find(STALL, 0, size)
    at = text.find(b"total=", at, size) if at >= 0 else -1
    return int(text[at + 6 : size].split()[0]) / 1e6 if at >= 0 else 0.0

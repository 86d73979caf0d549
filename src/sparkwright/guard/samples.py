"""Memory samples, read from /proc into preallocated buffers, and the ring file that keeps the latest samples.

The file survives a crash of the host. It consists of a header and a ring of lines, and is written in full when it is created.
Later writes change its bytes in place (O_DSYNC), so that they need no new blocks from the file system.
"""

from __future__ import annotations

import os

BUFFER_BYTES = 8192
#: rows of /proc/meminfo that a sample needs
TOTAL_FIELD, FREE_FIELD, AVAILABLE_FIELD = b"MemTotal:", b"MemFree:", b"MemAvailable:"
#: rows for pages that must be written to disk before they can be reused, although MemAvailable includes them
UNWRITTEN_FIELDS = (b"Dirty:", b"Writeback:")
STALL_PREFIX = b"full "

HEADER_BYTES, LINE_BYTES, LINE_COUNT = 2048, 64, 1024
FILE_BYTES = HEADER_BYTES + LINE_COUNT * LINE_BYTES
#: format of a sample in the ring: seconds since the epoch, available and free KiB, milliseconds of stalls since boot
SAMPLE_FORMAT = "%.3f %d %d %d"


class Meter:
    """Reads the host's memory. Files stay open and the buffer is reused, so that taking a sample allocates nothing but numbers.

    Args:
        root: prefix of /proc; empty on a real host. A simulated host replaces its files, so they are reopened for each sample.
    """

    __slots__ = ("_buffer", "_meminfo_fd", "_path", "_pressure_fd", "available", "free", "stall_s", "total")

    def __init__(self, root: str = "") -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._path = f"{root}/proc/meminfo"
        self._meminfo_fd = -1 if root else os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._pressure_fd = -1
        if not root:
            try:
                self._pressure_fd = os.open("/proc/pressure/memory", os.O_RDONLY | os.O_CLOEXEC)
                os.preadv(self._pressure_fd, [self._buffer], 0)
            except OSError:
                self._pressure_fd = -1
        self.total = self.available = self.free = 0
        self.stall_s = 0.0
        self.read()

    def read(self) -> None:
        """Take a sample: `total`, `available` and `free` in bytes, `stall_s` in seconds since boot.

        `available` is MemAvailable without unwritten pages. Raises OSError.
        """
        size, text = self._fill_buffer(self._meminfo_fd), self._buffer
        self.total, self.free = (
            _parse_meminfo_bytes(text, TOTAL_FIELD, size),
            _parse_meminfo_bytes(text, FREE_FIELD, size),
        )
        unwritten_bytes = _parse_meminfo_bytes(text, UNWRITTEN_FIELDS[0], size) + _parse_meminfo_bytes(
            text, UNWRITTEN_FIELDS[1], size
        )
        self.available = max(0, _parse_meminfo_bytes(text, AVAILABLE_FIELD, size) - unwritten_bytes)
        if self._pressure_fd >= 0:
            size = os.preadv(self._pressure_fd, [self._buffer], 0)
            self.stall_s = _parse_stall_s(self._buffer, size)

    def _fill_buffer(self, fd: int) -> int:
        """Read /proc/meminfo into the buffer and return its size."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC) if fd < 0 else fd
        try:
            return os.preadv(descriptor, [self._buffer], 0)
        finally:
            if fd < 0:
                os.close(descriptor)


def read_boot_id(root: str = "") -> str:
    """Return an id of this boot, made of the kernel's boot id and the start time of the first process.

    The start time distinguishes boots of a container that simulates a host.
    """
    ids = []
    for path in (f"{root}/proc/sys/kernel/random/boot_id", f"{root}/proc/1/stat"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        ids.append(text.rpartition(")")[2].split()[19] if path.endswith("stat") else text)
    return ":".join(ids)


def _parse_meminfo_bytes(text: bytearray, name: bytes, size: int) -> int:
    """Return a value from /proc/meminfo in bytes, or 0 if it is missing."""
    position = text.find(name, 0, size)
    if position < 0:
        return 0
    end = text.find(b"k", position + len(name), size)
    return int(text[position + len(name) : end]) * 1024 if end > 0 else 0


def _parse_stall_s(text: bytearray, size: int) -> float:
    """Return `total` of the "full" line in /proc/pressure/memory, in seconds."""
    position = text.find(STALL_PREFIX, 0, size)
    position = text.find(b"total=", position, size) if position >= 0 else -1
    return int(text[position + 6 : size].split()[0]) / 1e6 if position >= 0 else 0.0


class Ring:
    """A ring file of samples. The sampling thread calls `add`, which accesses no file; another thread calls `flush`.

    Args:
        path: path of the file, which is truncated.
        header: initial rows of the header, values by name.
    """

    __slots__ = ("_body", "_count", "_fd", "_flushed_count", "header", "path")

    def __init__(self, path: str, header: dict[str, str]) -> None:
        self.path, self.header = path, header
        self._body = bytearray(LINE_COUNT * LINE_BYTES)
        self._count = self._flushed_count = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DSYNC
        self._fd = os.open(path, flags, 0o600)
        os.pwrite(self._fd, self._format_header() + self._body, 0)
        os.fsync(self._fd)

    def add(self, time_s: float, available: int, free: int, stall_s: float) -> None:
        """Add a sample in memory, to be written by `flush`. `time_s` is in seconds since the epoch."""
        line = (SAMPLE_FORMAT % (time_s, available >> 10, free >> 10, stall_s * 1000)).encode()
        begin = self._count % LINE_COUNT * LINE_BYTES
        self._body[begin : begin + LINE_BYTES] = line[: LINE_BYTES - 1].ljust(LINE_BYTES - 1) + b"\n"
        self._count += 1

    def set_header_row(self, name: str, value: str) -> None:
        """Set a row of the header in memory, to be written by `flush`."""
        self.header[name] = value

    def flush(self) -> None:
        """Write new samples to disk. Raises OSError."""
        count = self._count
        new_count = min(count - self._flushed_count, LINE_COUNT)
        first_line = (count - new_count) % LINE_COUNT
        parts = [(first_line, min(first_line + new_count, LINE_COUNT)), (0, first_line + new_count - LINE_COUNT)]
        for begin, end in parts:
            if end > begin:
                piece = bytes(self._body[begin * LINE_BYTES : end * LINE_BYTES])
                os.pwrite(self._fd, piece, HEADER_BYTES + begin * LINE_BYTES)
        self._flushed_count = count
        os.pwrite(self._fd, self._format_header(), 0)

    def _format_header(self) -> bytes:
        rows = "".join(f"{name} {' '.join(value.split())[:200]}\n" for name, value in self.header.items())
        return rows.encode(errors="replace")[: HEADER_BYTES - 1].ljust(HEADER_BYTES - 1) + b"\n"


def read(path: str) -> tuple[dict[str, str], list[tuple[float, int, int, float]]]:
    """Return the header and the samples of a ring file, oldest first.

    A sample is (seconds since the epoch, available bytes, free bytes, stall seconds). Damaged lines are skipped. Raises OSError.
    """
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES)
    rows = data[:HEADER_BYTES].decode(errors="replace").splitlines()
    header = dict(row.partition(" ")[::2] for row in rows if row.strip())
    samples = []
    for row in data[HEADER_BYTES:].split(b"\n"):
        try:
            time_s, available, free, stall_ms = row.split()
            samples.append((float(time_s), int(available) << 10, int(free) << 10, int(stall_ms) / 1000))
        except ValueError:
            continue
    return header, sorted(samples)

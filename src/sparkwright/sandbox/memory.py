"""The unified memory of CPU and GPU, its holders, and the resulting /proc/meminfo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sparkwright.units import GIB

TOTAL_BYTES = int(119.7 * GIB)  # as reported by a GB10 of 2025
SYSTEM_BYTES = int(6.2 * GIB)  # DGX OS, its desktop and the driver
CMA_BYTES = 32 * 2**20  # reserved for devices
RELEASE_DELAY_S = 0.4  # delay before the memory of an exited container is released
OVERSHOOT_BYTES_PER_S = 3 * GIB  # growth of a starting server that exceeds its share (measured on a GB10)
LEAK_BYTES_PER_S = GIB // 2  # growth of a server with a leak
GROWTH_INTERVAL_S = 0.05


class MemoryPool:
    """The unified memory of a simulated Spark.

    Args:
        meminfo: file to keep up to date in the format of /proc/meminfo, or None.
        on_exhausted: called when the memory is exhausted.
    """

    def __init__(self, meminfo: Path | None, on_exhausted: Callable[[], None] = lambda: None) -> None:
        self._on_exhausted = on_exhausted
        self._meminfo = meminfo
        self._bytes_by_holder: dict[str, int] = {"system": SYSTEM_BYTES}
        self._mutex = threading.Lock()
        self._write()

    @property
    def available_bytes(self) -> int:
        """Available memory."""
        with self._mutex:
            return TOTAL_BYTES - sum(self._bytes_by_holder.values())

    def claim(self, holder: str, size_bytes: int) -> bool:
        """Set the size of a holder's memory. Return False, and change nothing, if too little is available."""
        with self._mutex:
            available_bytes = TOTAL_BYTES - sum(size for name, size in self._bytes_by_holder.items() if name != holder)
            if size_bytes > available_bytes:
                return False
            self._bytes_by_holder[holder] = size_bytes
        self._write()
        return True

    def grow(self, holder: str, bytes_per_s: int, stop_event: threading.Event) -> None:
        """Add memory to a holder until `stop_event` is set or the memory is exhausted."""
        while not stop_event.wait(GROWTH_INTERVAL_S):
            if not self.add(holder, int(bytes_per_s * GROWTH_INTERVAL_S)):
                return

    def add(self, holder: str, size_bytes: int) -> bool:
        """Add memory to a holder even if too little is available. Return False if that exhausts the memory."""
        with self._mutex:
            available_bytes = TOTAL_BYTES - sum(self._bytes_by_holder.values())
            self._bytes_by_holder[holder] = self._bytes_by_holder.get(holder, 0) + min(
                size_bytes, max(0, available_bytes)
            )
        self._write()
        if size_bytes >= available_bytes:
            threading.Thread(target=self._on_exhausted, daemon=True).start()
        return size_bytes < available_bytes

    def release(self, holder: str, *, delay_s: float = 0) -> None:
        """Release a holder's memory, at once or after a delay. Holder names must not be reused."""
        if delay_s:
            timer = threading.Timer(delay_s, self.release, (holder,))
            timer.daemon = True
            timer.start()
            return
        with self._mutex:
            self._bytes_by_holder.pop(holder, None)
        self._write()

    def _write(self) -> None:
        if self._meminfo is None:
            return
        with self._mutex:
            free_bytes = TOTAL_BYTES - sum(self._bytes_by_holder.values())
            sizes = {
                "MemTotal": TOTAL_BYTES,
                "MemFree": max(0, free_bytes - GIB // 2),
                "MemAvailable": free_bytes,
                "Buffers": 0,
                "Cached": GIB // 2,
                "Shmem": 0,
                "SwapTotal": 0,
                "SwapFree": 0,
                "CmaTotal": CMA_BYTES,
                "CmaFree": CMA_BYTES,
            }
            text = "".join(f"{name + ':':<16}{size // 1024:>12} kB\n" for name, size in sizes.items())
            self._meminfo.parent.mkdir(parents=True, exist_ok=True)
            temporary_file = self._meminfo.with_suffix(".new")
            temporary_file.write_text(text)
            temporary_file.replace(self._meminfo)

"""The unified memory of CPU and GPU as a ledger of holders, and the /proc/meminfo that follows from it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sparkwright.units import GIB

TOTAL_BYTES = int(119.7 * GIB)  # as a GB10 of 2025 reports it
SYSTEM_BYTES = int(6.2 * GIB)  # DGX OS, its desktop and the driver
CMA_BYTES = 32 * 2**20  # reserved for devices
LINGER_S = 0.4  # a CUDA context slightly outlives its container
#: growth of a holder without bounds, bytes per second: as measured on a GB10, and a leak; and its interval, seconds
OVERSHOOT_BYTES_PER_S, LEAK_BYTES_PER_S, STEP_S = 3 * GIB, GIB // 2, 0.05


class MemoryPool:
    """The unified memory of a simulated Spark.

    Args:
        meminfo: file that is kept up to date in the format of /proc/meminfo; None for none.
        on_exhausted: called once when the memory is exhausted.
    """

    def __init__(self, meminfo: Path | None, on_exhausted: Callable[[], None] = lambda: None) -> None:
        self._lost = on_exhausted
        self._meminfo = meminfo
        self._held: dict[str, int] = {"system": SYSTEM_BYTES}
        self._mutex = threading.Lock()
        self._write()

    @property
    def available(self) -> int:
        """The available memory, bytes."""
        with self._mutex:
            return TOTAL_BYTES - sum(self._held.values())

    def claim(self, holder: str, size_bytes: int) -> bool:
        """Set a holder's memory. Return False if there is too little."""
        with self._mutex:
            rest = TOTAL_BYTES - sum(size for name, size in self._held.items() if name != holder)
            if size_bytes > rest:
                return False
            self._held[holder] = size_bytes
        self._write()
        return True

    def grow(self, holder: str, per_s: int, stopped: threading.Event) -> None:
        """Take more and more memory until stopped. The host is lost when none is left."""
        while not stopped.wait(STEP_S):
            if not self.add(holder, int(per_s * STEP_S)):
                return

    def add(self, holder: str, size_bytes: int) -> bool:
        """Take memory without a check. Return False if that exhausted it."""
        with self._mutex:
            rest = TOTAL_BYTES - sum(self._held.values())
            self._held[holder] = self._held.get(holder, 0) + min(size_bytes, max(0, rest))
        self._write()
        if size_bytes >= rest:
            threading.Thread(target=self._lost, daemon=True).start()
        return size_bytes < rest

    def release(self, holder: str, *, after_s: float = 0) -> None:
        """Release a holder's memory, at once or after a delay. A holder is one start of one program; names are never reused."""
        if after_s:
            timer = threading.Timer(after_s, self.release, (holder,))
            timer.daemon = True
            timer.start()
            return
        with self._mutex:
            self._held.pop(holder, None)
        self._write()

    def _write(self) -> None:
        if self._meminfo is None:
            return
        with self._mutex:
            free = TOTAL_BYTES - sum(self._held.values())
            rows = {"MemTotal": TOTAL_BYTES, "MemFree": max(0, free - GIB // 2), "MemAvailable": free, "Buffers": 0}
            rows |= {
                "Cached": GIB // 2,
                "Shmem": 0,
                "SwapTotal": 0,
                "SwapFree": 0,
                "CmaTotal": CMA_BYTES,
                "CmaFree": CMA_BYTES,
            }
            text = "".join(f"{name + ':':<16}{size // 1024:>12} kB\n" for name, size in rows.items())
            self._meminfo.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._meminfo.with_suffix(".new")
            temporary.write_text(text)
            temporary.replace(self._meminfo)

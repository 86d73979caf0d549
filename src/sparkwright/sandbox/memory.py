"""The memory that CPU and GPU share on a Spark, as a ledger: who holds how much, and /proc/meminfo made from it."""

from __future__ import annotations

import threading
from pathlib import Path

from sparkwright.units import GIB

TOTAL = int(119.7 * GIB)  # what a GB10 of 2025 shows
SYSTEM = int(6.2 * GIB)  # DGX OS, its desktop and the driver
CMA = 32 * 2**20  # reserved for devices
LINGER_S = 0.4  # a CUDA context outlives its container a little


class Pool:
    """meminfo: the file to keep true; None keeps none."""

    def __init__(self, meminfo: Path | None) -> None:
        self._meminfo = meminfo
        self._held: dict[str, int] = {"system": SYSTEM}
        self._mutex = threading.Lock()
        self._write()

    @property
    def available(self) -> int:
        """Bytes that are free."""
        with self._mutex:
            return TOTAL - sum(self._held.values())

    def claim(self, holder: str, size_bytes: int) -> bool:
        """Take memory; False when there is not enough."""
        with self._mutex:
            rest = TOTAL - sum(size for name, size in self._held.items() if name != holder)
            if size_bytes > rest:
                return False
            self._held[holder] = size_bytes
        self._write()
        return True

    def grow(self, holder: str, size_bytes: int) -> None:
        """Take so much more for a holder, as far as there is any; less than nothing gives some back."""
        with self._mutex:
            free = TOTAL - sum(self._held.values())
            self._held[holder] = max(0, self._held.get(holder, 0) + min(size_bytes, free))
        self._write()

    def release(self, holder: str, *, after_s: float = 0) -> None:
        """Give memory back, at once or a little later. A holder is one start of one thing, never a name used again."""
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
            free = TOTAL - sum(self._held.values())
            rows = {"MemTotal": TOTAL, "MemFree": max(0, free - GIB // 2), "MemAvailable": free, "Buffers": 0}
            rows |= {"Cached": GIB // 2, "Shmem": 0, "SwapTotal": 0, "SwapFree": 0, "CmaTotal": CMA, "CmaFree": CMA}
            text = "".join(f"{name + ':':<16}{size // 1024:>12} kB\n" for name, size in rows.items())
            self._meminfo.parent.mkdir(parents=True, exist_ok=True)
            beside = self._meminfo.with_suffix(".new")
            beside.write_text(text)
            beside.replace(self._meminfo)

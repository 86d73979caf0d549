"""The compute processes of the simulated GPU, in a file that its nvidia-smi prints."""

from __future__ import annotations

import threading
from pathlib import Path

from sparkwright.host.state import write_atomically


class Gpu:
    """The memory of the simulated GPU, by process.

    Args:
        rows: file that is kept up to date, a line for each process as `pid, name, MiB`; None for none.
    """

    def __init__(self, rows: Path | None) -> None:
        self._rows = rows
        self._held: dict[int, str] = {}
        self._mutex = threading.Lock()
        self._write()

    def use(self, pid: int, name: str, size_bytes: int) -> None:
        """Set the GPU memory that a process uses; 0 removes it."""
        with self._mutex:
            self._held.pop(pid, None)
            if size_bytes:
                self._held[pid] = f"{pid}, {name}, {size_bytes >> 20}"
            self._write()

    def _write(self) -> None:
        if self._rows is not None:
            text = "".join(f"{row}\n" for row in self._held.values())
            write_atomically(self._rows, text.encode())

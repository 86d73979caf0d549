"""The compute processes of the pretend GPU: a file that its nvidia-smi prints."""

from __future__ import annotations

import threading
from pathlib import Path

from sparkwright.host.state import write_atomically


class Gpu:
    """rows: the file to keep true, a line a process as `pid, name, MiB`; None keeps none."""

    def __init__(self, rows: Path | None) -> None:
        self._rows = rows
        self._held: dict[int, str] = {}
        self._mutex = threading.Lock()
        self._write()

    def use(self, pid: int, name: str, size_bytes: int) -> None:
        """So much of the GPU's memory is a process's; with 0 it does not use it any more."""
        with self._mutex:
            self._held.pop(pid, None)
            if size_bytes:
                self._held[pid] = f"{pid}, {name}, {size_bytes >> 20}"
            self._write()

    def _write(self) -> None:
        if self._rows is not None:
            text = "".join(f"{row}\n" for row in self._held.values())
            write_atomically(self._rows, text.encode())

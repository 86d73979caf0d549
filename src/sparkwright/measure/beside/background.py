"""A thread that samples something beside a measurement, for as long as the `with` block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(ABC):
    """A sampler that runs during the `with` block; leaving it waits for the last sample."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def sample(self) -> None:
        """Take one sample."""

    def pause(self, seconds: float) -> None:
        """Wait between two samples, or until the block ends."""
        self._stop.wait(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()

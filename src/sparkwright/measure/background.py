"""Background samplers for measurements, including one for the client's own lag, and suspension of garbage collection."""

from __future__ import annotations

import gc
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from sparkwright.measure.figures import percentile

LAG_SLEEP_S = 0.005
#: maximum lag for valid percentiles of gaps, as a share of the median gap
MAX_LAG_SHARE_OF_GAP = 0.25
#: maximum lag for a valid rate, as a share of the decoding time, whose start and end may both be late
MAX_LAG_SHARE_OF_DECODING = 0.1


class BackgroundSampler(ABC):
    """A sampler that runs in a thread during a `with` block."""

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
        """Take one sample, and pause until the next."""

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the block ends."""
        self._stop.wait(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()


@contextmanager
def suspend_gc() -> Iterator[None]:
    """Suspend garbage collection during a `with` block, and collect afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LagSampler(BackgroundSampler):
    """Samples how late this process wakes up from a sleep."""

    def __init__(self, samples_s: Iterable[float] = ()) -> None:
        super().__init__()
        self.samples_s = list(samples_s)

    @property
    def p99_s(self) -> float:
        """The 99th percentile; 0 without samples."""
        return percentile(sorted(self.samples_s), 99) if self.samples_s else 0.0

    @property
    def max_s(self) -> float:
        return max(self.samples_s, default=0.0)

    def spoils_percentiles(self, gap_s: float | None) -> bool:
        """Return True if the p99 of gaps of this length would measure the client instead of the server."""
        return gap_s is not None and self.p99_s > MAX_LAG_SHARE_OF_GAP * gap_s

    def spoils_rates(self, decoding_s: float | None) -> bool:
        """Return True if a rate over this time would measure the client instead of the server."""
        return decoding_s is not None and self.p99_s > MAX_LAG_SHARE_OF_DECODING * decoding_s

    def sample(self) -> None:
        began_s = time.perf_counter()
        time.sleep(LAG_SLEEP_S)
        self.samples_s.append(time.perf_counter() - began_s - LAG_SLEEP_S)

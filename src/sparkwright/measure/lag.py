"""How late this client itself is: short sleeps, and by how much they were overslept."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from sparkwright.measure.figures import percentile

SLEEP_S = 0.005
#: a lag beyond this share of the gaps it is to measure spoils their percentiles
OF_GAP = 0.25
#: a rate has two ends, each as late as the lag: beyond this share of the time between them it is spoilt too
OF_DECODING = 0.1


@dataclass
class Lag:
    """Sampled while the `with` block runs."""

    samples_s: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Lag:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def p99_s(self) -> float:
        """All but the worst."""
        return percentile(sorted(self.samples_s), 99) if self.samples_s else 0.0

    @property
    def max_s(self) -> float:
        """The worst."""
        return max(self.samples_s, default=0.0)

    def spoils_percentiles(self, gap_s: float | None) -> bool:
        """Whether p99 figures of gaps of this length would be the client's own."""
        return gap_s is not None and self.p99_s > OF_GAP * gap_s

    def spoils_rates(self, decoding_s: float | None) -> bool:
        """Whether even a rate over this time would be."""
        return decoding_s is not None and self.p99_s > OF_DECODING * decoding_s

    def _sample(self) -> None:
        while not self._stop.is_set():
            before_s = time.perf_counter()
            time.sleep(SLEEP_S)
            self.samples_s.append(time.perf_counter() - before_s - SLEEP_S)

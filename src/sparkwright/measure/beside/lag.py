"""Scheduling lag of this client: short sleeps, and by how much they were overslept."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sparkwright.measure.beside.background import Background
from sparkwright.measure.figures import percentile

SLEEP_S = 0.005
#: lag, as a share of the measured gaps, that spoils their percentiles
OF_GAP = 0.25
#: lag, as a share of the decoding time, that spoils a rate: both of its ends may be late by the lag
OF_DECODING = 0.1


class Lag(Background):
    """The lag of this client, sampled while the `with` block runs."""

    def __init__(self, samples_s: Iterable[float] = ()) -> None:
        super().__init__()
        self.samples_s = list(samples_s)

    @property
    def p99_s(self) -> float:
        """The 99th percentile, seconds."""
        return percentile(sorted(self.samples_s), 99) if self.samples_s else 0.0

    @property
    def max_s(self) -> float:
        return max(self.samples_s, default=0.0)

    def spoils_percentiles(self, gap_s: float | None) -> bool:
        """Return True if p99 figures of gaps of this length would measure the client instead of the server."""
        return gap_s is not None and self.p99_s > OF_GAP * gap_s

    def spoils_rates(self, decoding_s: float | None) -> bool:
        """Return True if a rate over this time would measure the client instead of the server."""
        return decoding_s is not None and self.p99_s > OF_DECODING * decoding_s

    def sample(self) -> None:
        before_s = time.perf_counter()
        time.sleep(SLEEP_S)
        self.samples_s.append(time.perf_counter() - before_s - SLEEP_S)

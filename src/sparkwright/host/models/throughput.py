"""The recent rate of a transfer, and its remaining time."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from sparkwright import units

WINDOW_S = 5.0


@dataclass
class Throughput:
    """The rate of the last 5 s, from the number of bytes received so far."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def at(self, done_bytes: int, now_s: float | None = None) -> float:
        """Record the bytes received so far. Returns bytes per second; 0.0 while unknown."""
        now_s = time.monotonic() if now_s is None else now_s
        self._seen.append((now_s, done_bytes))
        while now_s - self._seen[0][0] > WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        then_s, before = self._seen[0]
        return max(0.0, (done_bytes - before) / (now_s - then_s)) if now_s > then_s else 0.0


def left(remaining_bytes: int, rate: float) -> str:
    """Return the remaining time at this rate: "40 s left", "12 min left"; "" if unknown."""
    if rate <= 0 or remaining_bytes <= 0:
        return ""
    return f"{units.about(remaining_bytes / rate)} left"

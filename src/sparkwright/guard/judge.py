"""Detect from memory samples, without side effects, that the host is about to run out of memory.

Facts (public issues about GB10 hosts, 2026; see docs/decisions/0042-the-guard-of-a-start.md):

* Available memory fell from 29 GiB to 2.5 in nine seconds, and the host went down: the remaining time counts, not the level.
* Servers ran for weeks with 1.5 to 1.9 GiB available, so a low level alone is not a danger. The bounds are shares of MemTotal or
  of the memory that was available when the server was verified, or are set by `guard_gib` in the host's file.
* MemFree near zero is normal while files are read: it counts only in combination with MemAvailable and with stalled processes.
"""

from __future__ import annotations

GIB = 2**30

#: share of MemTotal below which the server is killed immediately: 0.5 GiB of 121.7
EXHAUSTED_SHARE = 0.004
#: share of MemTotal below which available memory must not fall: 1.2 GiB of 121.7
FLOOR_SHARE = 0.01
#: a GB10's driver fails to allocate if available and free memory are both below these shares: 9.7 and 2 GiB of 121.7
LOW_SHARE, LOW_FREE_SHARE = 0.08, 0.0165
#: the host no longer works if all processes wait for memory during more than this share of the time
STALLED_SHARE = 0.25
#: how far ahead a fall is extrapolated, in seconds: normally, and for an expected fall the shortest time in which a kill helps
LOOKAHEAD_S, MIN_LOOKAHEAD_S = 1.0, 0.4
#: how far ahead a slow fall is extrapolated, in seconds: long enough to stop a server gracefully
SLOW_LOOKAHEAD_S = 20.0
#: time over which the rates of a fall and of a slow fall are averaged, in seconds
SHORT_WINDOW_S, LONG_WINDOW_S = 0.5, 10.0
#: a fall below this share of the expected level is unexpected
UNEXPECTED_SHARE = 0.9
#: rates below which a fall or a slow fall is ignored as noise, in bytes per second
MIN_FALL_RATE, MIN_LEAK_RATE = GIB // 10, 8 * 2**20
MAX_SAMPLES = 256
#: shortest pause between two samples, in seconds; the longest is MAX_PAUSE_S in start.py and service.py
MIN_PAUSE_S = 0.04


class Floors:
    """The bounds of available memory, in bytes.

    Args:
        total: MemTotal.
        floor: level below which available memory must not fall; 0 for a share of MemTotal.
        expected: expected lowest level: that of the last verified start of this configuration, or the lowest since a server was
            verified; 0 if unknown.
        verified_available: available memory when the server was verified; 0 during a start.
    """

    __slots__ = ("exhausted", "expected", "floor", "total", "verified_available")

    def __init__(self, total: int, floor: int = 0, expected: int = 0, verified_available: int = 0) -> None:
        self.total, self.expected, self.verified_available = total, expected, verified_available
        self.floor = floor or int(total * FLOOR_SHARE)
        self.exhausted = floor or int(total * EXHAUSTED_SHARE)
        settled_level = min(level for level in (expected, verified_available, total) if level)
        if not floor and settled_level < total:
            self.floor, self.exhausted = min(self.floor, settled_level // 2), min(self.exhausted, settled_level // 4)


class Danger:
    """The reason to stop a server.

    Attributes:
        kind: "falling", "gone" (no memory is left), "stalled" or "leaking" (there is time for a graceful stop).
        time_s: monotonic time of the sample that showed the danger, in seconds.
        available: available memory in that sample, in bytes.
        free: free memory in that sample, in bytes.
        rate: rate at which available memory fell, in bytes per second.
    """

    __slots__ = ("available", "free", "kind", "rate", "time_s")

    def __init__(self, kind: str, time_s: float, available: int, free: int, rate: float) -> None:
        self.kind, self.time_s, self.available, self.free, self.rate = kind, time_s, available, free, rate

    @property
    def is_graceful(self) -> bool:
        """Return True if there is time to stop the server instead of killing it."""
        return self.kind == "leaking"


class DangerDetector:
    """Judges each new sample together with the previous ones. Its lists are allocated once and overwritten."""

    __slots__ = ("_available", "_count", "_free", "_stall_s", "_time_s", "floors", "lowest", "lowest_s")

    def __init__(self, floors: Floors) -> None:
        self.floors = floors
        self._time_s, self._stall_s = [0.0] * MAX_SAMPLES, [0.0] * MAX_SAMPLES
        self._available, self._free = [0] * MAX_SAMPLES, [0] * MAX_SAMPLES
        self._count = 0
        self.lowest, self.lowest_s = floors.total, 0.0

    def add_sample(self, time_s: float, available: int, free: int, stall_s: float) -> Danger | None:
        """Add a sample, and return the danger that it shows, or None.

        Args:
            time_s: monotonic time, in seconds.
            available: MemAvailable without pages that must be written to disk before they can be reused, in bytes.
            free: MemFree, in bytes.
            stall_s: total time since boot during which all processes waited for memory, in seconds.
        """
        slot = self._count % MAX_SAMPLES
        self._time_s[slot], self._available[slot], self._free[slot], self._stall_s[slot] = (
            time_s,
            available,
            free,
            stall_s,
        )
        self._count += 1
        if available < self.lowest:
            self.lowest, self.lowest_s = available, time_s
        kind = self._danger_kind(time_s, available, free)
        return Danger(kind, time_s, available, free, max(0.0, self.rate(SHORT_WINDOW_S))) if kind else None

    def _danger_kind(self, time_s: float, available: int, free: int) -> str:
        floors = self.floors
        if available < floors.exhausted and self._previous_available() < floors.exhausted:
            return "gone"
        rate = self.rate(SHORT_WINDOW_S)
        is_unexpected = not floors.expected or available < floors.expected * UNEXPECTED_SHARE
        is_imminent = available - rate * MIN_LOOKAHEAD_S < floors.exhausted or (
            is_unexpected and available - rate * LOOKAHEAD_S < floors.floor
        )
        if rate > MIN_FALL_RATE and is_imminent and self._is_still_falling(rate):
            return "falling"
        total = floors.total
        if (
            available < total * LOW_SHARE
            and free < total * LOW_FREE_SHARE
            and self._stalled_share(time_s) > STALLED_SHARE
        ):
            return "stalled"
        if floors.verified_available and is_unexpected:
            slow_rate = self.rate(LONG_WINDOW_S)
            if (
                slow_rate > MIN_LEAK_RATE
                and available - slow_rate * SLOW_LOOKAHEAD_S < floors.floor
                and self._has_samples_for(LONG_WINDOW_S)
            ):
                return "leaking"
        return ""

    def rate(self, window_s: float) -> float:
        """Return the rate at which available memory falls, in bytes per second, from a linear fit over the last `window_s`.

        It is 0 for fewer than three samples, because two do not prove a fall.
        """
        newest = self._count - 1
        n = 0
        sum_t = sum_a = sum_tt = sum_ta = 0.0
        end_s = self._time_s[newest % MAX_SAMPLES]
        while n < MAX_SAMPLES and n < self._count:
            slot = (newest - n) % MAX_SAMPLES
            t = self._time_s[slot] - end_s
            if t < -window_s and n >= 3:
                break
            a = float(self._available[slot])
            sum_t, sum_a, sum_tt, sum_ta = sum_t + t, sum_a + a, sum_tt + t * t, sum_ta + t * a
            n += 1
        spread = n * sum_tt - sum_t * sum_t
        return -(n * sum_ta - sum_t * sum_a) / spread if n >= 3 and spread > 0 else 0.0

    def _is_still_falling(self, rate: float) -> bool:
        """Return True if both of the newest steps continue the fall.

        One sample without a fall ends it. A single step, such as one allocation causes, is not a fall.
        """
        return self._count >= 3 and all(self._is_falling(step, rate) for step in (1, 2))

    def _is_falling(self, step: int, rate: float) -> bool:
        """Return True if a step, counted from 1 for the newest, falls faster than a quarter of the rate."""
        newest, previous = (self._count - step) % MAX_SAMPLES, (self._count - step - 1) % MAX_SAMPLES
        seconds = self._time_s[newest] - self._time_s[previous]
        return self._available[previous] - self._available[newest] > rate * seconds / 4

    def _previous_available(self) -> int:
        """Return the available memory of the sample before the newest, or MemTotal if there is none."""
        return self._available[(self._count - 2) % MAX_SAMPLES] if self._count > 1 else self.floors.total

    def _stalled_share(self, time_s: float) -> float:
        """Return the share of the last two seconds during which all processes waited for memory."""
        oldest = newest = self._count - 1
        while oldest > max(0, self._count - MAX_SAMPLES) and time_s - self._time_s[oldest % MAX_SAMPLES] < 2:
            oldest -= 1
        seconds = time_s - self._time_s[oldest % MAX_SAMPLES]
        stalled_s = self._stall_s[newest % MAX_SAMPLES] - self._stall_s[oldest % MAX_SAMPLES]
        return stalled_s / seconds if seconds >= 1 else 0.0

    def _has_samples_for(self, seconds: float) -> bool:
        """Return True if the samples cover at least this time."""
        oldest = max(0, self._count - MAX_SAMPLES)
        return self._time_s[(self._count - 1) % MAX_SAMPLES] - self._time_s[oldest % MAX_SAMPLES] >= seconds

    def pause_s(self, max_s: float) -> float:
        """Return the number of seconds until the next sample, from MIN_PAUSE_S to `max_s`.

        A fall of 12 GiB/s must not reach the floor between two samples, and an idle host must cost little.
        """
        headroom_bytes = self._available[(self._count - 1) % MAX_SAMPLES] - self.floors.floor
        return min(max_s, max(MIN_PAUSE_S, headroom_bytes / (12 * GIB)))

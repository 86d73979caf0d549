"""The retry policy of a transfer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of a transfer, and the pauses between them."""

    #: give up after this many in a row without progress
    tries: int = 6
    #: before the second, third, ... try; the last one is repeated
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)
    #: between two progress messages
    say_every_s: float = 1.0  # a message names all current files, and the journal keeps it
    #: silent retries of the hub's client per request (1 s, 2 s, 4 s apart); few, because a user who waits should see why
    hub_retries: int = 2

    def pause_s(self, failed: int) -> float:
        """Return the pause after this many tries in a row without progress."""
        return self.pauses_s[min(max(failed - 1, 0), len(self.pauses_s) - 1)]

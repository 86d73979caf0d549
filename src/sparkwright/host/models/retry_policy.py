"""How long a transfer goes on trying before it gives up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """tries: so many in a row that bring nothing end it. pauses_s: before the second, the third, ... try; the last holds on.

    say_every_s: between two words of progress. hub_retries: what the hub's client does by itself within one try, unsaid, for
    each request (1 s, 2 s, 4 s apart); few, because a person who waits should hear why.
    """

    tries: int = 6
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)
    say_every_s: float = 1.0  # each word names every file under way, and the journal keeps them
    hub_retries: int = 2

    def pause_s(self, failed: int) -> float:
        """How long to wait after so many tries in a row that brought nothing."""
        return self.pauses_s[min(max(failed - 1, 0), len(self.pauses_s) - 1)]

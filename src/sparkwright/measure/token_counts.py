"""Compare the server's own token count with the client's, and how far they may differ on an otherwise idle server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

#: tolerated difference, as a share of the server's tokens
MISMATCH = 0.01
#: tokens that a server may still generate after the client has ended the request
CUT_SHORT = 8
#: delay of the server's count after the last token, seconds
SETTLES_S = 1.0


def uncounted(served: float, streamed: int, capped: int) -> bool:
    """Return True if the server generated tokens that this client did not ask for.

    Args:
        served: tokens by the server's counters.
        streamed: tokens by this client's count.
        capped: number of requests that the client ended early.
    """
    return served - streamed > max(MISMATCH * served, CUT_SHORT * capped)


def miscounted(served: float, streamed: int, capped: int) -> bool:
    """Return True if the two counts disagree, in either direction. Arguments as for `uncounted`."""
    return uncounted(served, streamed, capped) or streamed - served > MISMATCH * served


def risen(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """Return the increase of a counter, or None if it is missing before or after."""
    return after[name] - before[name] if name in before and name in after else None


def settled(
    read: Callable[[], Mapping[str, float]], wrong: Callable[[Mapping[str, float]], object]
) -> Mapping[str, float]:
    """Return the counters after a measurement, read again while `wrong` holds: they may lag behind the last token."""
    until_s = time.monotonic() + SETTLES_S
    while wrong(after := read()) and time.monotonic() <= until_s:
        time.sleep(0.05)
    return after

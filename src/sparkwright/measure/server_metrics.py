"""The counters of a server: its /metrics, and the requests in progress that they show."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sparkwright.engines import http as roles
from sparkwright.engines.http import Http
from sparkwright.errors import Inconclusive
from sparkwright.measure import http_probe
from sparkwright.visible import count

IDLE = "Try again when the server is idle."


def read(http: Http, base_url: str, api_key: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return the counters by role and the cache's settings; both are empty if the server exports none."""
    if not http.metrics:
        return {}, {}
    answer = http_probe.ask(base_url, http.metrics, api_key=api_key)
    text = answer.body.decode(errors="replace") if answer.status == 200 else ""
    return http.counters(text), http.cache_of(text)


def busy(counters: Mapping[str, float]) -> float | None:
    """Return the number of running and waiting requests, or None if unknown."""
    if roles.RUNNING not in counters:
        return None
    return counters[roles.RUNNING] + counters.get(roles.WAITING, 0)


def idle(counters: Callable[[], Mapping[str, float]], within_s: float) -> Mapping[str, float]:
    """Return the counters of an idle server. Raises Inconclusive if it still serves others after within_s seconds."""
    until_s = time.monotonic() + within_s
    while running := busy(found := counters()):
        if time.monotonic() > until_s:
            message = f"other traffic: {count(int(running), 'request')} running or waiting"
            raise Inconclusive(f"{message}; measuring now would be inconclusive.", fix=IDLE)
        time.sleep(0.1)
    return found


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

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

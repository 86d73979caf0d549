"""Counters that a server exports, read before and after a measurement and compared with what the client received."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sparkwright.engines import http as engine_http
from sparkwright.errors import Inconclusive
from sparkwright.measure.http_probe import SHORT_TIMEOUT_S, Target
from sparkwright.visible import format_count

IDLE_FIX = "Try again when the server is idle."
#: tolerated difference between the two counts, as a share of the server's
MAX_MISMATCH_SHARE = 0.01
#: tokens that a server may still generate after the client has ended the request
MAX_TOKENS_AFTER_CAP = 8
#: maximum delay of the server's counters after the last token
COUNTER_LAG_S = 1.0


def read_counters(target: Target) -> tuple[dict[str, float], dict[str, str]]:
    """Return the counters by role, and the settings of the prefix cache; both are empty if the server exports no metrics."""
    http = target.http
    if not http.metrics_path:
        return {}, {}
    response = target.send(http.metrics_path, timeout_s=SHORT_TIMEOUT_S)
    text = response.body.decode(errors="replace") if response.status == 200 else ""
    return http.counters(text), http.parse_cache_settings(text)


def count_active_requests(counters: Mapping[str, float]) -> float | None:
    """Return the number of running and waiting requests, or None if unknown."""
    if engine_http.RUNNING not in counters:
        return None
    return counters[engine_http.RUNNING] + counters.get(engine_http.WAITING, 0)


def wait_until_idle(get_counters: Callable[[], Mapping[str, float]], timeout_s: float) -> Mapping[str, float]:
    """Wait until the server is idle and return its counters. Raises Inconclusive if it is still busy after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while active_requests := count_active_requests(counters := get_counters()):
        if time.monotonic() > deadline_s:
            message = f"other traffic: {format_count(int(active_requests), 'request')} running or waiting"
            raise Inconclusive(f"{message}; measuring now would be inconclusive.", fix=IDLE_FIX)
        time.sleep(0.1)
    return counters


def has_foreign_tokens(served_tokens: float, streamed_tokens: int, capped_streams: int) -> bool:
    """Return True if the server generated tokens that this client did not request.

    Args:
        served_tokens: number of tokens according to the server's counters.
        streamed_tokens: number of tokens that this client counted.
        capped_streams: number of requests that the client ended early.
    """
    return served_tokens - streamed_tokens > max(
        MAX_MISMATCH_SHARE * served_tokens, MAX_TOKENS_AFTER_CAP * capped_streams
    )


def has_count_mismatch(served_tokens: float, streamed_tokens: int, capped_streams: int) -> bool:
    """Return True if the two counts disagree in either direction. Takes the arguments of `has_foreign_tokens`."""
    return (
        has_foreign_tokens(served_tokens, streamed_tokens, capped_streams)
        or streamed_tokens - served_tokens > MAX_MISMATCH_SHARE * served_tokens
    )


def counter_increase(
    counters_before: Mapping[str, float], counters_after: Mapping[str, float], name: str
) -> float | None:
    """Return the increase of a counter, or None if it is missing before or after."""
    return counters_after[name] - counters_before[name] if name in counters_before and name in counters_after else None


def read_settled_counters(
    get_counters: Callable[[], Mapping[str, float]], should_reread: Callable[[Mapping[str, float]], object]
) -> Mapping[str, float]:
    """Return the counters after a measurement, reading them again for up to COUNTER_LAG_S while `should_reread` returns true."""
    deadline_s = time.monotonic() + COUNTER_LAG_S
    while should_reread(counters := get_counters()) and time.monotonic() <= deadline_s:
        time.sleep(0.05)
    return counters

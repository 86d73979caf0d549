"""The counters of a server: its /metrics, read once, and what they say of requests under way."""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.engines.vllm import endpoints
from sparkwright.measure import http_probe


def read(base_url: str, api_key: str) -> tuple[dict[str, float], dict[str, str]]:
    """The counters and the cache's settings; both empty where the server shows none."""
    answer = http_probe.ask(base_url, endpoints.METRICS, api_key=api_key)
    text = answer.body.decode(errors="replace") if answer.status == 200 else ""
    return endpoints.counters(text), endpoints.cache_config(text)


def busy(counters: Mapping[str, float]) -> float | None:
    """Requests at work or waiting; None when nobody says."""
    if endpoints.RUNNING not in counters:
        return None
    return counters[endpoints.RUNNING] + counters.get(endpoints.WAITING, 0)

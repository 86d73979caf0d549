"""The token check: a short question that shows whether a server generates."""

from __future__ import annotations

from sparkwright.engines.vllm import endpoints
from sparkwright.measure import http_probe
from sparkwright.measure.http_probe import Answer

PROMPT = "Say ok."


def ask(url: str, model: str, tokens: int = 1, *, timeout_s: float, api_key: str = "", priority: int = 0) -> Answer:
    """Ask for a few tokens, within timeout_s. Never raises. model: the served name. priority: see `endpoints.generated`."""
    body = endpoints.generated(model, PROMPT, tokens, priority=priority)
    return http_probe.ask(url, endpoints.CHAT, body=body, api_key=api_key, timeout_s=timeout_s)

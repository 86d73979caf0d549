"""The token check: a short question that shows whether a server generates."""

from __future__ import annotations

from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.measure import http_probe
from sparkwright.measure.http_probe import Answer

PROMPT = "Say ok."


def ask(
    http: Http, url: str, model: str, tokens: int = 1, *, timeout_s: float, api_key: str = "", priority: int = 0
) -> Answer:
    """Ask for a few tokens, more plainly where the server refuses that; each time within timeout_s. Never raises.

    model: the served name. priority: see `openai_api.generated`.
    """
    body = openai_api.generated(http, model, PROMPT, tokens, priority=priority)
    return http_probe.ask_plainly(http, url, body, api_key=api_key, timeout_s=timeout_s)

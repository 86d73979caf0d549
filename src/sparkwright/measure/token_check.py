"""The token check: a short question that shows that a server works, by a token, a vector or a score."""

from __future__ import annotations

from typing import Any

from sparkwright.engines import openai_api, tasks
from sparkwright.engines.http import GENERATE, Http
from sparkwright.measure import http_probe
from sparkwright.measure.http_probe import Answer

PROMPT = "Say ok."


def ask(
    http: Http, url: str, model: str, tokens: int = 1, *, timeout_s: float, api_key: str = "", priority: int = 0
) -> Answer:
    """Ask for a few tokens, and again with fewer options if the server refuses some. Never raises.

    Args:
        http: the engine's HTTP API.
        url: of the server.
        model: served name.
        tokens: to generate.
        timeout_s: for each attempt.
        api_key: of the server.
        priority: see `openai_api.generated`.
    """
    if http.task != GENERATE:
        path, request_body = tasks.PROOFS[http.task].request(model)
        return http_probe.ask(url, path, body=request_body, api_key=api_key, timeout_s=timeout_s)
    body = openai_api.generated(http, model, PROMPT, tokens, priority=priority)
    return http_probe.ask_plainly(http, url, body, api_key=api_key, timeout_s=timeout_s)


def missing(http: Http, answer: Any) -> str:
    """Return what a response with status 200 lacks, such as "without a token", or an empty string.

    A reranker's wrong order is no sign that it failed since; `verify_health` checks that.

    Args:
        http: the engine's HTTP API.
        answer: JSON of the response.
    """
    if http.task == GENERATE:
        return "" if openai_api.tokens_of(answer) > 0 else "without a token"
    judged = tasks.PROOFS[http.task].judge(answer)
    return "" if judged.holds else judged.why_not

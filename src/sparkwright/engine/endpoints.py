"""vLLM's HTTP side: paths, requests and how answers read. The same from 0.11 to 0.33 where nothing else is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEALTH = "/health"  # 200 with an empty body, 503 when the engine is dead; it says nothing about tokens
MODELS = "/v1/models"
VERSION = "/version"
METRICS = "/metrics"
CHAT = "/v1/chat/completions"

#: counters of /metrics (>= 0.11)
GENERATED_TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


def generated(model: str, tokens: int) -> dict[str, Any]:
    """The request that proves health: a few tokens without thinking, so that the content is not null."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Say ok."}],
        "max_tokens": tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def measured_stream(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """The request that is measured: every chunk carries the cumulative token count."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }


def delta_counts(delta: Mapping[str, Any]) -> bool:
    """Whether a chunk carries generated text of any kind; the first chunk only names the role."""
    kinds = ("content", "reasoning", "reasoning_content", "tool_calls")
    return any(delta.get(kind) for kind in kinds)


def spoken(answer: Any) -> tuple[str, str]:
    """The content and the thinking of a whole answer; reasoning_content was its name before 0.16 or so."""
    try:
        message = answer["choices"][0]["message"]
        return str(message["content"] or ""), str(message.get("reasoning") or message.get("reasoning_content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return "", ""


def counters(metrics_text: str) -> dict[str, float]:
    """The counters above, summed over engines, from Prometheus text. One that is missing is left out."""
    found: dict[str, float] = {}
    for line in metrics_text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in (GENERATED_TOKENS, RUNNING, WAITING):
            try:
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
            except (IndexError, ValueError):
                continue
    return found

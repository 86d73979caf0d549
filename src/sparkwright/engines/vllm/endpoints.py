"""vLLM's HTTP side: paths, requests and how answers read. The same from 0.11 to 0.33 where nothing else is said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.engines.vllm import key_file
from sparkwright.trust.bounds import count_of, number_of

HEALTH = "/health"  # 200 with an empty body, 503 when the engine is dead; it says nothing about tokens
MODELS = "/v1/models"
VERSION = "/version"
METRICS = "/metrics"
CHAT = "/v1/chat/completions"

#: counters and gauges of /metrics (>= 0.11)
GENERATED_TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"  # in tokens, not requests
PREFIX_HITS = "vllm:prefix_cache_hits_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
KV_CACHE_USED = "vllm:kv_cache_usage_perc"  # 0 to 1
_REQUESTS = (GENERATED_TOKENS, RUNNING, WAITING, PREEMPTIONS, DRAFTS, ACCEPTED_TOKENS)
COUNTERS = frozenset((*_REQUESTS, PREFIX_QUERIES, PREFIX_HITS, KV_CACHE_USED))
CACHE_CONFIG = "vllm:cache_config_info"  # every setting of the cache, as labels

#: options of `vllm serve` that bring speculation (speculative-config, and its pieces in older releases)
SPECULATION_OPTIONS = ("--speculative-", "--spec-", "-sc")

#: what only vLLM and its kin take: left out, in this order, for a server that refuses a request with them
OWN_KEYS = (("chat_template_kwargs",), ("ignore_eos",), ("stream_options",), ("logprobs", "top_logprobs"))
REFUSALS = (400, 422)

LOWEST_PRIORITY = 1000
#: of a client that says nothing else, in tokens
LONGEST_ANSWER = 8192

#: twenty settings or so
LABELS_CHARS = 1 << 16
_LABEL = re.compile(r'(?<!\w)(\w+)="([^"]*)"')


def generated(model: str, prompt: str, tokens: int, *, priority: int = 0) -> dict[str, Any]:
    """The request that proves health: a few tokens without thinking, so that the content is not null.

    priority: higher numbers wait for lower ones; only an engine that schedules by priority takes one.
    """
    return {
        **({"priority": priority} if priority else {}),
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def low_priority(command: Sequence[str]) -> int:
    """The priority of a request that gives way to every other; 0 for an engine that does not schedule by priority."""
    return LOWEST_PRIORITY if _value(command, "--scheduling-policy") == "priority" else 0


def api_key(command: Sequence[str], env: Sequence[str]) -> str:
    """The key that a server was started with, from its container's command and environment; empty when it wants none."""
    given = dict(pair.partition("=")[::2] for pair in env)
    return _value(command, f"--{key_file.KEY}") or given.get(key_file.VARIABLE, "")


def _value(command: Sequence[str], option: str) -> str:
    """An option's first value, given as `--option value` or `--option=value`; the last one counts."""
    found = ""
    for word, after in zip(command, [*command, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            found = value if equals else after
    return found


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


def reference(model: str, prompt: str, tokens: int, top: int) -> dict[str, Any]:
    """The request whose text is compared with that of another day: greedy, with the likeliest choices at each token."""
    return {**generated(model, prompt, tokens), "logprobs": True, "top_logprobs": top}


def plainer(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same request with one thing less that other OpenAI-compatible servers refuse; None when there is none left."""
    for keys in OWN_KEYS:
        if any(key in body for key in keys):
            return {name: value for name, value in body.items() if name not in keys}
    return None


def delta_counts(delta: Mapping[str, Any]) -> bool:
    """Whether a chunk carries generated text of any kind; the first chunk only names the role."""
    return any(delta.get(kind) for kind in ("content", "reasoning", "reasoning_content", "tool_calls"))


def delta_speaks(delta: Mapping[str, Any]) -> bool:
    """Whether a chunk carries something for the user: text or a tool call, not thinking."""
    return bool(delta.get("content") or delta.get("tool_calls"))


def served(models: Any) -> dict[str, int | None]:
    """The names of the served models, in their order, each with its context's length; None where a server does not tell it.

    models: the answer of MODELS.
    """
    rows = models.get("data") if isinstance(models, dict) else None
    rows = [row for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else []
    return {str(row["id"]): count_of(row.get("max_model_len")) for row in rows}


def answer_tokens(context: int | None) -> int | None:
    """The longest answer that a client may ask for, in tokens: half of the context at most, for prompt and answer share it.

    context: its length; None, as the answer is then, where it is not known.
    """
    return None if context is None else min(LONGEST_ANSWER, max(1, context // 2))


def spoken(answer: Any) -> tuple[str, str]:
    """The content and the thinking of a whole answer; reasoning_content was its name before 0.16 or so."""
    try:
        message = answer["choices"][0]["message"]
        return str(message["content"] or ""), str(message.get("reasoning") or message.get("reasoning_content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return "", ""


def logprobs(answer: Any) -> list[list[tuple[str, Any]]]:
    """For each token of a whole answer its choices with their log probabilities, as they are told; empty where none are.

    A token is named by its bytes, where they are told: half a character has no other name.
    """
    try:
        rows = answer["choices"][0]["logprobs"]["content"]
        return [[(_token(one), one["logprob"]) for one in row["top_logprobs"]] for row in rows]
    except (KeyError, IndexError, TypeError, AttributeError):
        return []


def _token(choice: Mapping[str, Any]) -> str:
    given = choice.get("bytes")
    return bytes_name(given) if isinstance(given, list) and given else str(choice["token"])


def bytes_name(given: Sequence[Any]) -> str:
    """Bytes as text, those of no character escaped."""
    return bytes(one for one in given if isinstance(one, int) and 0 <= one < 256).decode(errors="backslashreplace")


def tokens_of(answer: Any) -> int:
    """How many tokens a whole answer was made of. A single one may have no text: a mark of thinking, half a character."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    reported = count_of(usage.get("completion_tokens")) if isinstance(usage, dict) else None
    return reported if reported is not None else int(any(spoken(answer)))


def counters(metrics_text: str) -> dict[str, float]:
    """The counters above, summed over engines, from Prometheus text. One that is missing or is no count is left out."""
    found: dict[str, float] = {}
    for line in metrics_text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in COUNTERS:
            value = number_of(line.rpartition(" ")[2])
            if value is not None and value >= 0:
                found[name] = found.get(name, 0.0) + value
    return found


def cache_config(metrics_text: str) -> dict[str, str]:
    """The engine's settings of its cache, as it prints them: "True", "16", "None"; empty where it says none."""
    for line in metrics_text.splitlines():
        if line.startswith(CACHE_CONFIG + "{"):
            return dict(_LABEL.findall(line[:LABELS_CHARS]))
    return {}

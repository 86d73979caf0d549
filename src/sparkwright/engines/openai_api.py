"""OpenAI's API, which every server here implements: requests, and readers of answers. An engine's differences are in its Http."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.engines.http import Http
from sparkwright.trust.bounds import count_or_none

CHAT_PATH = "/v1/chat/completions"
#: statuses of a server that refuses a key of a request's body
REFUSAL_STATUSES = (400, 422)

#: tool calls in one answer
MAX_CALLS = 64

#: default longest answer of a client, in tokens
MAX_ANSWER_TOKENS = 8192


def build_request(http: Http, model: str, prompt: str, tokens: int, *, priority: int = 0) -> dict[str, Any]:
    """Return the request that proves health: a few tokens without thinking, so that the content is not null.

    priority: higher numbers wait for lower ones; only an engine that schedules by priority takes one.
    """
    return {
        **({"priority": priority} if priority else {}),
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        **http.plain,
    }


def build_stream_request(
    http: Http, model: str, prompt: str, tokens: int, *, temperature: float = 0.0
) -> dict[str, Any]:
    """Return the request for measuring the rate: every chunk carries the cumulative token count, if the engine supports that."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": temperature,
        "stream": True,
        **http.measured,
        **http.plain,
    }


def build_reference_request(http: Http, model: str, prompt: str, tokens: int, top: int) -> dict[str, Any]:
    """Return the request for comparing texts of different days: greedy, with the likeliest choices at each token."""
    return {**build_request(http, model, prompt, tokens), "logprobs": True, "top_logprobs": top}


def remove_refused_keys(http: Http, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request without one more key that other OpenAI-compatible servers refuse; None if none is left."""
    for keys in http.removable:
        if any(key in body for key in keys):
            return {name: value for name, value in body.items() if name not in keys}
    return None


def has_generated_text(delta: Mapping[str, Any]) -> bool:
    """Return True if a chunk carries generated text of any kind; the first chunk only names the role."""
    return any(delta.get(kind) for kind in ("content", "reasoning", "reasoning_content", "tool_calls"))


def has_user_content(delta: Mapping[str, Any]) -> bool:
    """Return True if a chunk carries something for the user: text or a tool call, not thinking."""
    return bool(delta.get("content") or delta.get("tool_calls"))


def parse_models(http: Http, models: Any) -> dict[str, int | None]:
    """Return the names of the served models, in their order, each with its context length; None if the server does not report it.

    models: the answer of its `models` path.
    """
    rows = models.get("data") if isinstance(models, dict) else None
    rows = [row for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else []
    return {str(row["id"]): count_or_none(http.context_of(row)) for row in rows}


def max_answer_tokens(context: int | None) -> int | None:
    """Return the longest answer that a client may request, in tokens: at most half of the context, which prompt and answer share.

    context: its length in tokens; None if not known, and then the result is None.
    """
    return None if context is None else min(MAX_ANSWER_TOKENS, max(1, context // 2))


def parse_answer(answer: Any) -> tuple[str, str]:
    """Return the content and the thinking of a whole answer; thinking was called reasoning_content before 0.16 or so."""
    try:
        message = answer["choices"][0]["message"]
        return str(message["content"] or ""), str(message.get("reasoning") or message.get("reasoning_content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return "", ""


def assemble_stream(chunks: Sequence[Any]) -> dict[str, Any]:
    """Return the chunks of a streamed chat as the answer without `stream`: one message, with its tool calls."""
    texts: dict[str, list[str]] = {"content": [], "reasoning": [], "reasoning_content": []}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for chunk in chunks:
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        given_delta = choice.get("delta")
        delta: dict[str, Any] = given_delta if isinstance(given_delta, dict) else {}
        reason = choice.get("finish_reason") or reason
        for kind, pieces in texts.items():
            if isinstance(delta.get(kind), str):
                pieces.append(delta[kind])
        for piece in delta.get("tool_calls") or () if isinstance(delta.get("tool_calls"), list) else ():
            _add_call(calls, piece)
    message: dict[str, Any] = {kind: "".join(pieces) or None for kind, pieces in texts.items()}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": reason}]}


def _add_call(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    """Add a piece of a streamed tool call to its call."""
    index = piece.get("index") if isinstance(piece, dict) else None
    function = piece.get("function") if isinstance(piece, dict) else None
    if type(index) is not int or not 0 <= index < MAX_CALLS or not isinstance(function, dict):
        return
    call = calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
    for key in ("name", "arguments"):
        if isinstance(function.get(key), str):
            call["function"][key] += function[key]


def parse_logprobs(answer: Any) -> list[list[tuple[str, Any]]]:
    """Return for each token of a whole answer its choices with their log probabilities; empty if the answer has none.

    A token is named by its bytes, if the answer has them: half a character has no other name.
    """
    try:
        rows = answer["choices"][0]["logprobs"]["content"]
        return [
            [(_token_name(top_logprob), top_logprob["logprob"]) for top_logprob in row["top_logprobs"]] for row in rows
        ]
    except (KeyError, IndexError, TypeError, AttributeError):
        return []


def _token_name(choice: Mapping[str, Any]) -> str:
    token_bytes = choice.get("bytes")
    return format_bytes(token_bytes) if isinstance(token_bytes, list) and token_bytes else str(choice["token"])


def format_bytes(values: Sequence[Any]) -> str:
    """Return bytes as text, with those that are no character escaped."""
    return bytes(item for item in values if isinstance(item, int) and 0 <= item < 256).decode(errors="backslashreplace")


def count_tokens(answer: Any) -> int:
    """Return the number of tokens in a whole answer. A single token may have no text: a thinking mark, half a character."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    reported = count_or_none(usage.get("completion_tokens")) if isinstance(usage, dict) else None
    return reported if reported is not None else int(any(parse_answer(answer)))

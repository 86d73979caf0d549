"""Build requests and parse answers of OpenAI's API, which every engine implements; its `Http` describes deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.engines.http import Http
from sparkwright.trust.bounds import count_or_none

CHAT_PATH = "/v1/chat/completions"
#: HTTP statuses that servers return for an unsupported JSON key
REFUSAL_STATUSES = (400, 422)
#: maximum number of tool calls in an answer
MAX_TOOL_CALLS = 64
#: largest `max_tokens` in generated client settings
MAX_ANSWER_TOKENS = 8192


def build_request(engine_http: Http, model: str, prompt: str, max_tokens: int, *, priority: int = 0) -> dict[str, Any]:
    """Return a request for a few tokens, without thinking so that `content` is not null.

    priority: lower numbers are served first; 0 omits the key, which only an engine that schedules by priority accepts.
    """
    return {
        **({"priority": priority} if priority else {}),
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        **engine_http.no_thinking_keys,
    }


def build_stream_request(
    engine_http: Http, model: str, prompt: str, max_tokens: int, *, temperature: float = 0.0
) -> dict[str, Any]:
    """Return a request to measure the token rate; if the engine supports it, every chunk has the cumulative token count."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        **engine_http.measurement_keys,
        **engine_http.no_thinking_keys,
    }


def build_reference_request(
    engine_http: Http, model: str, prompt: str, max_tokens: int, choice_count: int
) -> dict[str, Any]:
    """Return a greedy request whose output is compared over time, with the `choice_count` likeliest choices for each token."""
    return {**build_request(engine_http, model, prompt, max_tokens), "logprobs": True, "top_logprobs": choice_count}


def remove_refused_keys(engine_http: Http, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request without the next group of keys that some servers refuse; None if it has none of them."""
    for keys in engine_http.removable_keys:
        if any(key in body for key in keys):
            return {name: value for name, value in body.items() if name not in keys}
    return None


def has_generated_text(delta: Mapping[str, Any]) -> bool:
    """Return True if a chunk contains text, reasoning or a tool call; the first chunk contains only the role."""
    return any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))


def has_visible_content(delta: Mapping[str, Any]) -> bool:
    """Return True if a chunk contains text or a tool call, which the user sees, not only reasoning."""
    return bool(delta.get("content") or delta.get("tool_calls"))


def parse_models(engine_http: Http, models: Any) -> dict[str, int | None]:
    """Return the context length of each served model in a response from /v1/models, by name; None if it is not reported."""
    rows = models.get("data") if isinstance(models, dict) else None
    rows = [row for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else []
    return {str(row["id"]): count_or_none(engine_http.parse_context(row)) for row in rows}


def max_answer_tokens(context: int | None) -> int | None:
    """Return `max_tokens` for client settings: at most half of the context length, since the prompt needs the rest; None if unknown."""
    return None if context is None else min(MAX_ANSWER_TOKENS, max(1, context // 2))


def parse_answer(answer: Any) -> tuple[str, str]:
    """Return the content and the reasoning of a complete answer; empty if missing. vLLM named the latter reasoning_content until about 0.16."""
    try:
        message = answer["choices"][0]["message"]
        return str(message["content"] or ""), str(message.get("reasoning") or message.get("reasoning_content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return "", ""


def assemble_stream(chunks: Sequence[Any]) -> dict[str, Any]:
    """Assemble a streamed answer into a complete answer, as clients do."""
    texts: dict[str, list[str]] = {"content": [], "reasoning": [], "reasoning_content": []}
    calls: dict[int, dict[str, Any]] = {}
    finish_reason = None
    for chunk in chunks:
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice["delta"] if isinstance(choice.get("delta"), dict) else {}
        finish_reason = choice.get("finish_reason") or finish_reason
        for key, pieces in texts.items():
            if isinstance(delta.get(key), str):
                pieces.append(delta[key])
        for piece in delta["tool_calls"] if isinstance(delta.get("tool_calls"), list) else ():
            _add_call(calls, piece)
    message: dict[str, Any] = {key: "".join(pieces) or None for key, pieces in texts.items()}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish_reason}]}


def _add_call(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    """Add a piece of a streamed tool call to its call."""
    index = piece.get("index") if isinstance(piece, dict) else None
    function = piece.get("function") if isinstance(piece, dict) else None
    if type(index) is not int or not 0 <= index < MAX_TOOL_CALLS or not isinstance(function, dict):
        return
    call = calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
    for key in ("name", "arguments"):
        if isinstance(function.get(key), str):
            call["function"][key] += function[key]


def parse_logprobs(answer: Any) -> list[list[tuple[str, Any]]]:
    """Return the (token, log probability) choices for each token of a complete answer; empty if it has no log probabilities."""
    try:
        rows = answer["choices"][0]["logprobs"]["content"]
        return [[(_format_token(choice), choice["logprob"]) for choice in row["top_logprobs"]] for row in rows]
    except (KeyError, IndexError, TypeError, AttributeError):
        return []


def _format_token(choice: Mapping[str, Any]) -> str:
    """Return a token as text; from its bytes if possible, since the text of half a character is ambiguous."""
    token_bytes = choice.get("bytes")
    if not isinstance(token_bytes, list) or not token_bytes:
        return str(choice["token"])
    valid_bytes = (number for number in token_bytes if isinstance(number, int) and 0 <= number < 256)
    return bytes(valid_bytes).decode(errors="backslashreplace")


def count_tokens(answer: Any) -> int:
    """Return the number of tokens that a complete answer reports; if it reports none, 1 if it has any text, else 0.

    A reported token may have no text, for example if it is only part of a character.
    """
    usage = answer.get("usage") if isinstance(answer, dict) else None
    reported = count_or_none(usage.get("completion_tokens")) if isinstance(usage, dict) else None
    return reported if reported is not None else int(any(parse_answer(answer)))

"""The APIs through which servers generate text, by their names in recipes.

A probe, a gateway's proof and a check of a client's settings write their request as a chat, and read the answer as a chat's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkwright.engines import api_paths, messages_api, openai_api
from sparkwright.trust.bounds import count_or_none

# OpenAI's Responses API as servers of open models implement it: conversion of chat requests to it, and of its answers to chats.
#
# Read in vLLM 0.32.0 (entrypoints/openai/responses) and from the answers of vLLM 0.32.0 and llama-server b11549. Clients such
# as Codex take each item from the event that ends it, so a stream is assembled from those.

#: the types of the events that begin and end a stream
FIRST_EVENT, LAST_EVENTS = (
    "response.created",
    frozenset(("response.completed", "response.incomplete", "response.failed")),
)
#: in one answer
MAX_ITEMS = 64
#: keys of a chat request that have another form here
CONVERTED_KEYS = frozenset(
    ("messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream_options")
)


def convert_to_responses(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    """Return a chat request in this API's form.

    Args:
        chat: a request for /v1/chat/completions.
        thinks: whether it asks for thinking, as Codex does; None, and False, where that is not said.
    """
    body = {name: value for name, value in chat.items() if name not in CONVERTED_KEYS}
    body["input"] = [item for message in chat["messages"] for item in _convert_items(message)]
    if "max_tokens" in chat:
        body["max_output_tokens"] = chat["max_tokens"]
    if chat.get("tools"):
        body["tools"] = [{"type": "function", **tool["function"]} for tool in chat["tools"]]
        choice = chat.get("tool_choice") or "auto"
        named_choice = None if isinstance(choice, str) else {"type": "function", "name": choice["function"]["name"]}
        body["tool_choice"] = named_choice or choice
    if thinks:
        body["reasoning"] = {"effort": "medium"}
    return body


def _convert_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    if message.get("content"):
        yield {"role": message["role"], "content": message["content"]}
    for call in message.get("tool_calls") or ():
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def convert_responses_answer(body: Any) -> dict[str, Any]:
    """Return a whole answer in the form of a chat's; an invalid answer has no choices."""
    if not isinstance(body, dict) or not isinstance(body.get("output"), list):
        return {"choices": []}
    items = [item for item in body["output"][:MAX_ITEMS] if isinstance(item, dict)]
    message: dict[str, Any] = {"role": "assistant", "content": _join_text(items, "message", "output_text")}
    message["reasoning"] = _join_text(items, "reasoning", "reasoning_text") or _join_summary(items)
    calls = [_convert_call(item) for item in items if item.get("type") == "function_call"]
    if calls:
        message["tool_calls"] = calls
    is_incomplete = body.get("status") == "incomplete"
    reason = "length" if is_incomplete else "tool_calls" if calls else "stop"
    usage = body.get("usage")
    row = usage if isinstance(usage, dict) else {}
    counts = {
        "prompt_tokens": count_or_none(row.get("input_tokens")),
        "completion_tokens": count_or_none(row.get("output_tokens")),
    }
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": counts}


def _join_text(items: Sequence[Mapping[str, Any]], kind: str, part: str) -> str | None:
    """Return the text of the items of a kind, from their parts of a kind."""
    contents = [item.get("content") for item in items if item.get("type") == kind]
    parts = [value for content in contents if isinstance(content, list) for value in content]
    texts = [value.get("text") for value in parts if isinstance(value, dict) and value.get("type") == part]
    return "".join(text for text in texts if isinstance(text, str)) or None


def _join_summary(items: Sequence[Mapping[str, Any]]) -> str | None:
    summaries = [item.get("summary") for item in items if item.get("type") == "reasoning"]
    parts = [value for summary in summaries if isinstance(summary, list) for value in summary]
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict)) or None


def _convert_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def assemble_responses(events: Sequence[Any]) -> dict[str, Any]:
    """Return the events of a stream in the form of a chat's whole answer, assembled as clients do it."""
    rows = [event for event in events if isinstance(event, dict)]
    items = [row.get("item") for row in rows if row.get("type") == "response.output_item.done"]
    final_event = next((row for row in reversed(rows) if row.get("type") in LAST_EVENTS), {})
    last = final_event.get("response")
    return convert_responses_answer({**(last if isinstance(last, dict) else {}), "output": items})


class RequestConverter(Protocol):
    """A converter of a chat request to an API's own form. thinks: the request asks for thinking; None if it does not say."""

    def __call__(self, chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API through which servers generate text."""

    name: str
    path: str
    request: RequestConverter
    #: converts a whole answer to a chat's
    answer: Callable[[Any], dict[str, Any]]
    #: converts the events of a stream to a chat's whole answer
    assembled: Callable[[Sequence[Any]], dict[str, Any]]
    #: the type of a stream's first event; empty if events have no types
    first: str = ""
    #: the types of the event that ends a stream; empty if `[DONE]` does
    last: frozenset[str] = frozenset()

    def disorder(self, events: Sequence[Any]) -> str:
        """Return the error in the order of a stream's events, as a clause; empty for none."""
        kinds = [event.get("type") for event in events if isinstance(event, dict)]
        if not self.first or not kinds or kinds[0] == self.first:
            return ""
        return f"the stream begins with `{str(kinds[0])[:40]}` instead of `{self.first}`, which its clients refuse"


def _copy_chat(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    return dict(chat)


def _keep_answer(body: Any) -> dict[str, Any]:
    return body if isinstance(body, dict) else {"choices": []}


CHAT = Dialect("chat", openai_api.CHAT_PATH, _copy_chat, _keep_answer, openai_api.assemble_stream)
MESSAGES = Dialect(
    "messages",
    api_paths.MESSAGES,
    messages_api.convert_request,
    messages_api.convert_answer,
    messages_api.assemble_stream,
    messages_api.FIRST_EVENT,
    messages_api.LAST_EVENTS,
)
RESPONSES = Dialect(
    "responses",
    api_paths.RESPONSES,
    convert_to_responses,
    convert_responses_answer,
    assemble_responses,
    FIRST_EVENT,
    LAST_EVENTS,
)
#: the APIs besides chat, by the names of their probes
OTHER_DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (MESSAGES, RESPONSES)}
BY_PATH: Mapping[str, Dialect] = {dialect.path: dialect for dialect in (CHAT, MESSAGES, RESPONSES)}

"""The APIs through which servers generate text, by their names in recipes.

Probes and checks use the chat format: a dialect converts a chat request to its API, and that API's answer to a chat answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkwright.engines import api_paths, messages_api, openai_api
from sparkwright.trust.bounds import count_or_none

# Conversion to and from OpenAI's Responses API, as servers of open models implement it.
#
# Sources: vLLM 0.32.0 (entrypoints/openai/responses), and responses from vLLM 0.32.0 and llama-server b11549. Like Codex and other
# clients, `assemble_responses` takes each item of a stream from its final event.

#: types of the events that begin and end a stream of the Responses API
FIRST_EVENT_TYPE = "response.created"
LAST_EVENT_TYPES = frozenset(("response.completed", "response.incomplete", "response.failed"))
#: maximum number of output items in an answer
MAX_ITEMS = 64
#: keys of a chat request that the Responses API names or formats differently
CONVERTED_KEYS = frozenset(
    ("messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream_options")
)


def convert_to_responses(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    """Return a chat request in the format of the Responses API.

    chat: a request for /v1/chat/completions. thinks: request thinking, as Codex does.
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
    """Convert a complete answer to chat format; the result has no choices if the answer is invalid."""
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
    usage = body["usage"] if isinstance(body.get("usage"), dict) else {}
    counts = {
        "prompt_tokens": count_or_none(usage.get("input_tokens")),
        "completion_tokens": count_or_none(usage.get("output_tokens")),
    }
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": counts}


def _join_text(items: Sequence[Mapping[str, Any]], item_type: str, part_type: str) -> str | None:
    contents = [item.get("content") for item in items if item.get("type") == item_type]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == part_type]
    return "".join(text for text in texts if isinstance(text, str)) or None


def _join_summary(items: Sequence[Mapping[str, Any]]) -> str | None:
    summaries = [item.get("summary") for item in items if item.get("type") == "reasoning"]
    parts = [part for summary in summaries if isinstance(summary, list) for part in summary]
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict)) or None


def _convert_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def assemble_responses(events: Sequence[Any]) -> dict[str, Any]:
    """Assemble a streamed answer into a complete chat answer, as clients do."""
    events = [event for event in events if isinstance(event, dict)]
    items = [event.get("item") for event in events if event.get("type") == "response.output_item.done"]
    last_event: Mapping[str, Any] = next(
        (event for event in reversed(events) if event.get("type") in LAST_EVENT_TYPES), {}
    )
    response = last_event.get("response")
    return convert_responses_answer({**(response if isinstance(response, dict) else {}), "output": items})


class RequestConverter(Protocol):
    """A function that converts a chat request to another API. thinks: request thinking; None leaves it to the server."""

    def __call__(self, chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API through which servers generate text."""

    name: str
    path: str
    convert_request: RequestConverter
    #: converts a complete answer to a chat answer
    convert_answer: Callable[[Any], dict[str, Any]]
    #: converts the events of a stream to a complete chat answer
    assemble_answer: Callable[[Sequence[Any]], dict[str, Any]]
    #: type of a stream's first event; empty if events have no types
    first_event_type: str = ""
    #: types of the event that ends a stream; empty if `[DONE]` ends it
    last_event_types: frozenset[str] = frozenset()

    def find_order_error(self, events: Sequence[Any]) -> str:
        """Return a clause about a wrong first event of a stream; empty if the order of its events is right."""
        event_types = [event.get("type") for event in events if isinstance(event, dict)]
        if not self.first_event_type or not event_types or event_types[0] == self.first_event_type:
            return ""
        return f"the stream begins with `{str(event_types[0])[:40]}` instead of `{self.first_event_type}`, so clients refuse it"


def _copy_chat(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    return dict(chat)


def _pass_chat_answer(body: Any) -> dict[str, Any]:
    return body if isinstance(body, dict) else {"choices": []}


CHAT = Dialect("chat", openai_api.CHAT_PATH, _copy_chat, _pass_chat_answer, openai_api.assemble_stream)
MESSAGES = Dialect(
    "messages",
    api_paths.MESSAGES_PATH,
    messages_api.convert_request,
    messages_api.convert_answer,
    messages_api.assemble_stream,
    messages_api.FIRST_EVENT_TYPE,
    messages_api.LAST_EVENT_TYPES,
)
RESPONSES = Dialect(
    "responses",
    api_paths.RESPONSES_PATH,
    convert_to_responses,
    convert_responses_answer,
    assemble_responses,
    FIRST_EVENT_TYPE,
    LAST_EVENT_TYPES,
)
#: the APIs other than chat, by the names of their probes
OTHER_DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (MESSAGES, RESPONSES)}
DIALECTS_BY_PATH: Mapping[str, Dialect] = {dialect.path: dialect for dialect in (CHAT, MESSAGES, RESPONSES)}

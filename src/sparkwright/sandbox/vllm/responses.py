"""OpenAI's Responses API in the format of 0.32.0. Requests are converted to chats, and answers to items."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox.serving.generation import Token, count_tokens

STORE_VARIABLE = "VLLM_ENABLE_RESPONSES_API_STORE"  # environment variable that enables the storage of responses
MAX_STORED_RESPONSES = 1000  # maximum number of stored responses
NO_STORE_MESSAGE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable these "
    f"features, set the environment variable `{STORE_VARIABLE}=1` when launching the vLLM server."
)
#: fields that are null by default, in the order of a response
LEADING_NULLS = ("incomplete_details", "instructions", "metadata")
TRAILING_NULLS = ("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a request to a chat request."""
    chat = {name: body[name] for name in ("model", "stream", "temperature", "chat_template_kwargs") if name in body}
    content = body.get("input")
    items = content if isinstance(content, list) else [{"role": "user", "content": content}]
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    chat["messages"] = messages + [_to_message(item) for item in items if isinstance(item, dict)]
    tools = body.get("tools")
    # Codex also sends built-in tools of OpenAI, such as web_search
    functions = [tool for tool in tools if _is_function(tool)] if isinstance(tools, list) else []
    if functions:
        chat["tools"] = [{"type": "function", "function": tool} for tool in functions]
        choice = body.get("tool_choice") or "auto"
        chat["tool_choice"] = {"function": {"name": choice.get("name")}} if isinstance(choice, dict) else choice
    effort = (body.get("reasoning") or {}).get("effort")
    if effort and "chat_template_kwargs" not in chat:
        chat["chat_template_kwargs"] = {"enable_thinking": effort != "none"}
    text_format = (body.get("text") or {}).get("format") or {}
    if text_format.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": text_format}
    return chat


def _is_function(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "function"


def _to_message(item: Mapping[str, Any]) -> dict[str, Any]:
    match item.get("type"):
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    content = item.get("content")
    if isinstance(content, list):
        content = [_to_part(part) for part in content if isinstance(part, dict)]
    return {"role": item.get("role"), "content": content}


def _to_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return {"type": "text", "text": part.get("text")}


@dataclass
class ResponseAnswer:
    """The answer to one request of the Responses API."""

    model: str
    prompt_tokens: int
    #: JSON of the request
    request_body: Mapping[str, Any]
    #: returns the complete response, and stores it if that is enabled
    store_response: Callable[[dict[str, Any]], dict[str, Any]]
    #: id of the response
    id: str = field(default_factory=lambda: _new_id("resp"))
    #: seconds since the epoch
    created_s: int = field(default_factory=lambda: int(time.time()))

    def complete(self, tokens: Sequence[Token], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed. Tool calls replace the tokens' text."""
        items = [] if calls else [_build_item(kind, text) for kind, text in _texts_by_kind(tokens)]
        return self.store_response(
            self._final_response([*items, *(_build_call(call, "completed") for call in calls)], tokens)
        )

    def stream(self, tokens: Iterable[Token], calls: Sequence[Mapping[str, Any]] = ()) -> Iterator[bytes]:
        """Yield the events of a streamed answer."""
        sequence_numbers, generated_tokens, items = itertools.count(), list[Token](), list[dict[str, Any]]()
        pending_response = self.pending_response("in_progress")
        yield _encode_event(sequence_numbers, "response.created", response=pending_response)
        yield _encode_event(sequence_numbers, "response.in_progress", response=pending_response)
        for kind, pieces in itertools.groupby(tokens, lambda token: token.kind):
            if calls:
                generated_tokens += pieces
                continue
            yield from _text_item_events(sequence_numbers, kind, pieces, generated_tokens, items)
        for call in calls:
            yield from _call_item_events(sequence_numbers, call, items)
        yield _encode_event(
            sequence_numbers, "response.completed", response=self._final_response(items, generated_tokens)
        )

    @staticmethod
    def abort_events() -> Iterator[bytes]:
        """Close the connection without further events, as vLLM does when the engine core has exited."""
        raise ConnectionResetError

    def pending_response(self, status: str) -> dict[str, Any]:
        """Return a response without output, in a status such as queued or in_progress."""
        return self._response_body([], status, None, is_cut=False)

    def _final_response(self, items: list[dict[str, Any]], tokens: Sequence[Token]) -> dict[str, Any]:
        is_cut = bool(tokens) and tokens[-1].finish_reason == "length"
        reasoning_tokens = count_tokens(tokens, "reasoning")
        per_turn: list[int] = []
        input_details = {"cached_tokens": 0, "cache_write_tokens": 0}
        output_details = {"reasoning_tokens": reasoning_tokens, "tool_output_tokens": 0}
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {
                **input_details,
                "input_tokens_per_turn": per_turn,
                "cached_tokens_per_turn": per_turn,
            },
            "output_tokens": count_tokens(tokens),
            "output_tokens_details": {
                **output_details,
                "output_tokens_per_turn": per_turn,
                "tool_output_tokens_per_turn": per_turn,
            },
            "total_tokens": self.prompt_tokens + count_tokens(tokens),
        }
        return self._response_body(items, "incomplete" if is_cut else "completed", usage, is_cut=is_cut)

    def _response_body(self, items: list[dict[str, Any]], status: str, usage: Any, *, is_cut: bool) -> dict[str, Any]:
        body, tools = self.request_body, self.request_body.get("tools") or []
        return {
            "id": self.id,
            "created_at": self.created_s,
            **dict.fromkeys(LEADING_NULLS),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.get("instructions"),
            "model": self.model,
            "object": "response",
            "output": items,
            "parallel_tool_calls": True,
            "temperature": float(body.get("temperature", 1.0)),
            "tool_choice": body.get("tool_choice") or ("auto" if tools else "none"),
            "tools": [_echo_tool(tool) for tool in tools],
            "top_p": float(body.get("top_p", 1.0)),
            "background": bool(body.get("background")),
            "max_output_tokens": body.get("max_output_tokens"),
            **dict.fromkeys(("max_tool_calls", "previous_response_id", "prompt")),
            "reasoning": _echo_reasoning(body.get("reasoning")),
            "service_tier": "auto",
            "status": status,
            "text": body.get("text"),
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(TRAILING_NULLS),
        }


def _echo_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    identity = {"name": tool.get("name"), "parameters": tool.get("parameters"), "strict": None, "type": "function"}
    unset_fields = dict.fromkeys(("allowed_callers", "async", "defer_loading"))
    return {**identity, **unset_fields, "description": tool.get("description"), "output_schema": None}


def _echo_reasoning(reasoning: Any) -> dict[str, Any] | None:
    if not isinstance(reasoning, dict):
        return None
    return {**dict.fromkeys(("context", "effort", "generate_summary", "mode", "summary")), **reasoning}


def _texts_by_kind(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    for kind in ("reasoning", "content"):
        if text := "".join(token.text for token in tokens if token.kind == kind):
            yield kind, text


def _build_item(kind: str, text: str, *, item_id: str = "", status: str | None = None) -> dict[str, Any]:
    """Return a finished item. `status` is ignored for a message, which is always completed."""
    if kind == "reasoning":
        fields: dict[str, Any] = {"id": item_id or _new_id("rs"), "summary": [], "type": "reasoning"}
        content = [{"text": text, "type": "reasoning_text"}]
        return {**fields, "content": content, "encrypted_content": None, "status": status}
    part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    fields = {"id": item_id or _new_id("msg"), "content": [part], "role": "assistant"}
    return {**fields, "status": "completed", "type": "message", "phase": None}


def _build_call(call: Mapping[str, Any], status: str, *, item_id: str = "") -> dict[str, Any]:
    function = call["function"]
    arguments = "" if status == "in_progress" else function["arguments"]
    fields = {"arguments": arguments, "call_id": call["id"], "name": function["name"], "type": "function_call"}
    unset_fields = dict.fromkeys(("async", "caller", "namespace"))
    return {**fields, "id": item_id or _new_id("fc"), **unset_fields, "status": status}


def _text_item_events(
    sequence_numbers: Iterator[int],
    kind: str,
    pieces: Iterable[Token],
    generated_tokens: list[Token],
    items: list[dict[str, Any]],
) -> Iterator[bytes]:
    """Yield the events of an item of text or thinking. Add its tokens to `generated_tokens`, and the item to `items`."""
    is_thinking, index = kind == "reasoning", len(items)
    item_id = _new_id("rs" if is_thinking else "msg")
    position: dict[str, Any] = {"content_index": 0, "item_id": item_id, "output_index": index}
    extra_fields: dict[str, Any] = {} if is_thinking else {"logprobs": []}
    event_prefix = "response.reasoning_text" if is_thinking else "response.output_text"
    empty_part = {"text": "", "type": "reasoning_text"}
    part = empty_part if is_thinking else {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
    yield _encode_event(
        sequence_numbers, "response.output_item.added", item=_open_item(kind, item_id), output_index=index
    )
    yield _encode_event(sequence_numbers, "response.content_part.added", **position, part=part)
    texts = []
    for token in pieces:
        generated_tokens.append(token)
        texts.append(token.text)
        yield _encode_event(sequence_numbers, f"{event_prefix}.delta", **position, delta=token.text, **extra_fields)
    item = _build_item(kind, "".join(texts), item_id=item_id, status="completed")
    yield _encode_event(sequence_numbers, f"{event_prefix}.done", **position, **extra_fields, text="".join(texts))
    yield _encode_event(sequence_numbers, "response.content_part.done", **position, part=item["content"][0])
    yield _encode_event(sequence_numbers, "response.output_item.done", item=item, output_index=index)
    items.append(item)


def _open_item(kind: str, item_id: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {**_build_item(kind, "", item_id=item_id, status="in_progress"), "content": None}
    return {**_build_item(kind, "", item_id=item_id), "content": [], "status": "in_progress"}


def _call_item_events(
    sequence_numbers: Iterator[int], call: Mapping[str, Any], items: list[dict[str, Any]]
) -> Iterator[bytes]:
    index, item_id, arguments = len(items), _new_id("fc"), call["function"]["arguments"]
    position = {"item_id": item_id, "output_index": index}
    event_prefix = "response.function_call_arguments"
    started_item, item = (_build_call(call, status, item_id=item_id) for status in ("in_progress", "completed"))
    yield _encode_event(sequence_numbers, "response.output_item.added", item=started_item, output_index=index)
    yield _encode_event(sequence_numbers, f"{event_prefix}.delta", delta=arguments, **position)
    yield _encode_event(sequence_numbers, f"{event_prefix}.done", arguments=arguments, **position, name=item["name"])
    yield _encode_event(sequence_numbers, "response.output_item.done", item=item, output_index=index)
    items.append(item)


def _encode_event(sequence_numbers: Iterator[int], kind: str, **fields: Any) -> bytes:
    data = json.dumps({**fields, "sequence_number": next(sequence_numbers), "type": kind}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"

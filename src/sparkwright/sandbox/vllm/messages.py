"""Anthropic's Messages API in the format of 0.32.0. Requests are converted to chats, and answers to content blocks."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.sandbox.serving.generation import Token, count_tokens

TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
#: block and delta types by kind of token
BLOCK_TYPES = {"reasoning": ("thinking", "thinking_delta"), "content": ("text", "text_delta")}
STREAM_ERROR = "Error in message stream converter."


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a request to a chat request."""
    chat = {name: value for name, value in body.items() if name not in ("system", "tools", "tool_choice", "thinking")}
    system = _join_text(body.get("system"))
    messages = [{"role": "system", "content": system}] if system else []
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        messages += _to_chat_messages(message) if isinstance(message, dict) else ()
    chat["messages"] = messages
    if isinstance(body.get("tools"), list):
        chat["tools"] = [_to_tool(tool) for tool in body["tools"]]
        chat["tool_choice"] = _to_tool_choice(body.get("tool_choice"))
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        chat["chat_template_kwargs"] = {"enable_thinking": False}
    return chat


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    return "".join(str(block.get("text") or "") for block in blocks if isinstance(block, dict))


def _to_chat_messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Convert a message to chat messages. Each tool result becomes a separate message."""
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    if not blocks:
        yield {"role": message.get("role"), "content": _join_text(content)}
        return
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": block.get("tool_use_id"),
                "content": _join_text(block.get("content")),
            }
    parts = [part for block in blocks for part in _to_parts(block)]
    calls = [_to_tool_call(block) for block in blocks if block.get("type") == "tool_use"]
    if parts or calls:
        yield {"role": message.get("role"), "content": parts, **({"tool_calls": calls} if calls else {})}


def _to_parts(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    source = block.get("source")
    if block.get("type") == "text":
        yield {"type": "text", "text": block.get("text")}
    elif block.get("type") == "image" and isinstance(source, dict):
        url = source.get("url") or f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
        yield {"type": "image_url", "image_url": {"url": url}}


def _to_tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _to_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    identity = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**identity, "parameters": tool.get("input_schema")}}


def _to_tool_choice(choice: Any) -> Any:
    fields = choice if isinstance(choice, dict) else {}
    if fields.get("type") == "tool":
        return {"type": "function", "function": {"name": fields.get("name")}}
    return TOOL_CHOICES.get(str(fields.get("type")), "auto")


def token_count_response(token_count: int) -> dict[str, Any]:
    """Return the body of a response from /v1/messages/count_tokens."""
    return {"input_tokens": token_count, "context_management": {"original_input_tokens": token_count}}


@dataclass(frozen=True)
class MessageAnswer:
    """The answer to one request of the Messages API."""

    model: str
    prompt_tokens: int

    def complete(self, tokens: Sequence[Token], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed. Tool calls replace the tokens' text."""
        blocks: list[dict[str, Any]] = []
        for kind in ("reasoning", "content"):
            text = "".join(token.text for token in tokens if token.kind == kind)
            name = BLOCK_TYPES[kind][0]
            if text and not calls:
                signature = {"signature": secrets.token_hex(16)} if name == "thinking" else {}
                blocks.append({"type": name, name: text, **signature})
        blocks += [_tool_use_block(call, json.loads(call["function"]["arguments"])) for call in calls]
        message = {
            **self._opening(),
            "content": blocks or [{"type": "text", "text": ""}],
            "model": self.model,
            "stop_reason": _stop_reason(tokens, calls),
        }
        return {**message, "usage": self._usage(count_tokens(tokens))}

    def stream(self, tokens: Iterable[Token], calls: Sequence[Mapping[str, Any]] = ()) -> Iterator[bytes]:
        """Yield the events of a streamed answer."""
        end_fields = {"stop_reason": None, "stop_sequence": None}
        message = {**self._opening(), "content": [], "model": self.model, **end_fields, "usage": self._usage(0)}
        yield _encode_event("message_start", message=message)
        generated_tokens: list[Token] = []
        index = 0
        for kind, pieces in itertools.groupby(tokens, lambda token: token.kind):
            if calls:
                generated_tokens += pieces
                continue
            yield from _block_events(index, kind, pieces, generated_tokens)
            index += 1
        for call in calls:
            yield _encode_event("content_block_start", content_block=_tool_use_block(call, {}), index=index)
            delta = {"type": "input_json_delta", "partial_json": call["function"]["arguments"]}
            yield _encode_event("content_block_delta", delta=delta, index=index)
            yield _encode_event("content_block_stop", index=index)
            index += 1
        delta = {"stop_reason": _stop_reason(generated_tokens, calls), "stop_sequence": None}
        yield _encode_event("message_delta", delta=delta, usage=self._usage(count_tokens(generated_tokens)))
        yield _encode_event("message_stop")

    @staticmethod
    def abort_events() -> Iterator[bytes]:
        """Yield the last event of a stream whose engine core has exited."""
        yield _encode_event("error", error={"type": "internal_error", "message": STREAM_ERROR})

    def _opening(self) -> dict[str, Any]:
        return {"id": f"chatcmpl-{secrets.token_hex(8)}", "type": "message", "role": "assistant"}

    def _usage(self, token_count: int) -> dict[str, int]:
        return {"input_tokens": self.prompt_tokens, "output_tokens": token_count}


def _block_events(index: int, kind: str, pieces: Iterable[Token], generated_tokens: list[Token]) -> Iterator[bytes]:
    """Yield the events of a block of text or thinking, and append its tokens to `generated_tokens`."""
    name, delta_type = BLOCK_TYPES[kind]
    yield _encode_event("content_block_start", content_block={"type": name, name: ""}, index=index)
    for token in pieces:
        generated_tokens.append(token)
        yield _encode_event("content_block_delta", delta={"type": delta_type, name: token.text}, index=index)
    if name == "thinking":
        signature = {"type": "signature_delta", "signature": secrets.token_hex(16)}
        yield _encode_event("content_block_delta", delta=signature, index=index)
    yield _encode_event("content_block_stop", index=index)


def _tool_use_block(call: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments}


def _stop_reason(tokens: Sequence[Token], calls: Sequence[Any]) -> str:
    return "tool_use" if calls else STOP_REASONS.get(str(tokens[-1].finish_reason if tokens else "stop"), "end_turn")


def _encode_event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()

"""Anthropic's Messages API in the shape of 0.32.0: requests are converted to chats, answers to content blocks."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.sandbox.serving.generation import Token

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOPPED = {"stop": "end_turn", "length": "max_tokens"}
#: block and delta types by kind of token
PIECES = {"reasoning": ("thinking", "thinking_delta"), "content": ("text", "text_delta")}
UNREAD = "Error in message stream converter."


def chat_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in the format of a chat."""
    chat = {name: value for name, value in body.items() if name not in ("system", "tools", "tool_choice", "thinking")}
    system = _text(body.get("system"))
    messages = [{"role": "system", "content": system}] if system else []
    rows = body.get("messages")
    for message in rows if isinstance(rows, list) else ():
        messages += _messages(message) if isinstance(message, dict) else ()
    chat["messages"] = messages
    if isinstance(body.get("tools"), list):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        chat["tool_choice"] = _choice(body.get("tool_choice"))
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        chat["chat_template_kwargs"] = {"enable_thinking": False}
    return chat


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    return "".join(str(block.get("text") or "") for block in blocks if isinstance(block, dict))


def _messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message as messages of a chat: tool results become messages of their own."""
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    if not blocks:
        yield {"role": message.get("role"), "content": _text(content)}
        return
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _text(block.get("content"))}
    parts = [part for block in blocks for part in _parts(block)]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    if parts or calls:
        yield {"role": message.get("role"), "content": parts, **({"tool_calls": calls} if calls else {})}


def _parts(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    source = block.get("source")
    if block.get("type") == "text":
        yield {"type": "text", "text": block.get("text")}
    elif block.get("type") == "image" and isinstance(source, dict):
        url = source.get("url") or f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
        yield {"type": "image_url", "image_url": {"url": url}}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    about = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**about, "parameters": tool.get("input_schema")}}


def _choice(choice: Any) -> Any:
    given = choice if isinstance(choice, dict) else {}
    if given.get("type") == "tool":
        return {"type": "function", "function": {"name": given.get("name")}}
    return CHOICES.get(str(given.get("type")), "auto")


def counted(tokens: int) -> dict[str, Any]:
    """Return the answer to a request that counts tokens."""
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


@dataclass(frozen=True)
class Message:
    """The answer to one request."""

    model: str
    #: number of prompt tokens
    prompt: int

    def complete(self, tokens: Sequence[Token], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed.

        Args:
            tokens: of the answer.
            calls: tool calls, which replace the tokens' text.
        """
        blocks: list[dict[str, Any]] = []
        for kind in ("reasoning", "content"):
            text = "".join(token.text for token in tokens if token.kind == kind)
            name = PIECES[kind][0]
            if text and not calls:
                signature = {"signature": secrets.token_hex(16)} if name == "thinking" else {}
                blocks.append({"type": name, name: text, **signature})
        blocks += [_used(call, json.loads(call["function"]["arguments"])) for call in calls]
        message = {
            **self._opening(),
            "content": blocks or [{"type": "text", "text": ""}],
            "model": self.model,
            "stop_reason": _stopped(tokens, calls),
        }
        return {**message, "usage": self._usage(len(tokens))}

    def stream(self, tokens: Iterable[Token], calls: Sequence[Mapping[str, Any]] = ()) -> Iterator[bytes]:
        """Yield the events of a streamed answer."""
        end = {"stop_reason": None, "stop_sequence": None}
        message = {**self._opening(), "content": [], "model": self.model, **end, "usage": self._usage(0)}
        yield _event("message_start", message=message)
        made: list[Token] = []
        index = 0
        for kind, pieces in itertools.groupby(tokens, lambda token: token.kind):
            if calls:
                made += pieces
                continue
            yield from _block(index, kind, pieces, made)
            index += 1
        for call in calls:
            yield _event("content_block_start", content_block=_used(call, {}), index=index)
            delta = {"type": "input_json_delta", "partial_json": call["function"]["arguments"]}
            yield _event("content_block_delta", delta=delta, index=index)
            yield _event("content_block_stop", index=index)
            index += 1
        delta = {"stop_reason": _stopped(made, calls), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=self._usage(len(made)))
        yield _event("message_stop")

    @staticmethod
    def broken() -> Iterator[bytes]:
        """Yield the last events of a stream whose engine is gone."""
        yield _event("error", error={"type": "internal_error", "message": UNREAD})

    def _opening(self) -> dict[str, Any]:
        return {"id": f"chatcmpl-{secrets.token_hex(8)}", "type": "message", "role": "assistant"}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"input_tokens": self.prompt, "output_tokens": tokens}


def _block(index: int, kind: str, pieces: Iterable[Token], made: list[Token]) -> Iterator[bytes]:
    """Yield the events of a block of text or thinking, and append its tokens to `made`."""
    name, delta_type = PIECES[kind]
    yield _event("content_block_start", content_block={"type": name, name: ""}, index=index)
    for token in pieces:
        made.append(token)
        yield _event("content_block_delta", delta={"type": delta_type, name: token.text}, index=index)
    if name == "thinking":
        signature = {"type": "signature_delta", "signature": secrets.token_hex(16)}
        yield _event("content_block_delta", delta=signature, index=index)
    yield _event("content_block_stop", index=index)


def _used(call: Mapping[str, Any], given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given}


def _stopped(tokens: Sequence[Token], calls: Sequence[Any]) -> str:
    return "tool_use" if calls else STOPPED.get(str(tokens[-1].reason if tokens else "stop"), "end_turn")


def _event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()

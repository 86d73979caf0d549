"""Anthropic's Messages API as servers of open models implement it: conversion of chat requests to it, and of its answers to
chats.

Read in vLLM 0.32.0 (entrypoints/anthropic) and from the answers of vLLM 0.32.0 and llama-server b11549.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkwright.trust.bounds import count_or_none

#: the types of the events that begin and end a stream
FIRST_EVENT, LAST_EVENTS = "message_start", frozenset(("message_stop",))
#: blocks in one answer
MAX_BLOCKS = 64
#: finish reasons of a chat, by the stop reasons of this API
FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
#: keys of a chat request that have another form here
CONVERTED_KEYS = frozenset(("messages", "tools", "tool_choice", "max_completion_tokens", "stream_options", "thinks"))
#: Anthropic's minimum thinking budget, in tokens
MIN_THINKING_TOKENS = 1024


def convert_request(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    """Return a chat request in this API's form.

    Args:
        chat: a request for /v1/chat/completions.
        thinks: ask for thinking, as Claude Code does; None and False do not.
    """
    body = {name: value for name, value in chat.items() if name not in CONVERTED_KEYS}
    system = [str(message.get("content") or "") for message in chat["messages"] if message["role"] == "system"]
    if system:
        body["system"] = "\n".join(system)
    body["messages"] = list(_merge_turns(chat["messages"]))
    if chat.get("tools"):
        body["tools"] = [_convert_tool(tool["function"]) for tool in chat["tools"]]
        body["tool_choice"] = _convert_choice(chat.get("tool_choice") or "auto")
    if thinks and body.get("max_tokens", 0) > MIN_THINKING_TOKENS:
        body["thinking"] = {"type": "enabled", "budget_tokens": MIN_THINKING_TOKENS}
    return body


def build_count_request(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that counts the tokens of a chat's prompt."""
    names = ("model", "system", "messages", "tools", "tool_choice", "chat_template_kwargs")
    return {name: value for name, value in convert_request(chat).items() if name in names}


def _merge_turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the turns: roles alternate, and tool results are merged with the user's next message."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = list(_convert_blocks(message))
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    yield from turns


def _convert_blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return
    if message.get("content"):
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": json.loads(function["arguments"]),
        }


def _convert_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    description = {"name": function["name"], "description": function.get("description", "")}
    return {**description, "input_schema": function["parameters"]}


def _convert_choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"type": TOOL_CHOICES[choice]}
    return {"type": "tool", "name": choice["function"]["name"]}


def convert_answer(body: Any) -> dict[str, Any]:
    """Return a whole answer in the form of a chat's; an invalid answer has no choices."""
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        return {"choices": []}
    blocks = [block for block in body["content"][:MAX_BLOCKS] if isinstance(block, dict)]
    message: dict[str, Any] = {"role": "assistant", "content": _join_text(blocks, "text")}
    message["thinking"] = _join_text(blocks, "thinking")
    calls = [_convert_call(block) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    reason = body.get("stop_reason")
    finished = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    converted: dict[str, Any] = {"choices": [{"message": message, "finish_reason": finished}]}
    return converted | {"usage": convert_usage(body)}


def convert_usage(body: Mapping[str, Any]) -> dict[str, int | None]:
    """Return an answer's usage by the names of a chat's. Prompt tokens are those read anew and those from a cache."""
    reported = body.get("usage")
    row = reported if isinstance(reported, dict) else {}
    parts = [
        count_or_none(row.get(name))
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    prompt = None if parts[0] is None else sum(part or 0 for part in parts)
    return {"prompt_tokens": prompt, "completion_tokens": count_or_none(row.get("output_tokens"))}


def _join_text(blocks: Sequence[Mapping[str, Any]], kind: str) -> str | None:
    pieces = (block.get(kind) for block in blocks if block.get("type") == kind)
    return "".join(piece for piece in pieces if isinstance(piece, str)) or None


def _convert_call(block: Mapping[str, Any]) -> dict[str, Any]:
    tool_input = block.get("input")
    arguments = tool_input if isinstance(tool_input, str) else json.dumps(tool_input)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def assemble_stream(events: Sequence[Any]) -> dict[str, Any]:
    """Return the events of a stream in the form of a chat's whole answer, assembled as clients do it."""
    blocks: dict[int, dict[str, Any]] = {}
    body: dict[str, Any] = {"usage": {}}
    for event in events:
        if not isinstance(event, dict):
            continue
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start":
            _add_usage(body, _as_mapping(event.get("message")))
        elif kind == "message_delta":
            _add_usage(body, event)
            body["stop_reason"] = _as_mapping(event.get("delta")).get("stop_reason") or body.get("stop_reason")
        elif type(index) is int and 0 <= index < MAX_BLOCKS:
            _add_event(blocks, index, event)
    content = [_complete_block(blocks[index]) for index in sorted(blocks)]
    return convert_answer({**body, "content": content})


def _add_event(blocks: dict[int, dict[str, Any]], index: int, event: Mapping[str, Any]) -> None:
    """Add an event to its block; an event of a block that was never started is lost, as it is to a client."""
    if event.get("type") == "content_block_start":
        blocks[index] = {**_as_mapping(event.get("content_block")), "pieces": []}
    elif event.get("type") == "content_block_delta" and index in blocks:
        delta = _as_mapping(event.get("delta"))
        for name in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(name), str):
                blocks[index]["pieces"].append(delta[name])


def _complete_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block whose pieces are complete."""
    text, kind = "".join(block["pieces"]), block.get("type")
    if kind == "tool_use":
        return {**block, "input": text or block.get("input")}
    pending = block.get(str(kind))
    return {**block, str(kind): f"{pending if isinstance(pending, str) else ''}{text}"}


def _add_usage(body: dict[str, Any], event: Mapping[str, Any]) -> None:
    body["usage"] |= {name: value for name, value in _as_mapping(event.get("usage")).items() if value is not None}


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Anthropic's Messages API as servers of open models implement it: conversion of chat requests to it, and of its answers to
chats.

Read in vLLM 0.32.0 (entrypoints/anthropic) and from the answers of vLLM 0.32.0 and llama-server b11549.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkwright.trust.bounds import count_of

#: the types of the events that begin and end a stream
FIRST, LAST = "message_start", frozenset(("message_stop",))
#: blocks in one answer
MOST_BLOCKS = 64
#: finish reasons of a chat, by the stop reasons of this API
FINISHED = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
CHOICES = {"auto": "auto", "none": "none", "required": "any"}
#: keys of a chat request that have another form here
CONVERTED = frozenset(("messages", "tools", "tool_choice", "max_completion_tokens", "stream_options", "thinks"))
#: Anthropic's minimum thinking budget, in tokens
THINKING_BUDGET = 1024


def request(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    """Return a chat request in this API's form.

    Args:
        chat: a request for /v1/chat/completions.
        thinks: ask for thinking, as Claude Code does; None and False do not.
    """
    body = {name: value for name, value in chat.items() if name not in CONVERTED}
    system = [str(message.get("content") or "") for message in chat["messages"] if message["role"] == "system"]
    if system:
        body["system"] = "\n".join(system)
    body["messages"] = list(_turns(chat["messages"]))
    if chat.get("tools"):
        body["tools"] = [_tool(tool["function"]) for tool in chat["tools"]]
        body["tool_choice"] = _choice(chat.get("tool_choice") or "auto")
    if thinks and body.get("max_tokens", 0) > THINKING_BUDGET:
        body["thinking"] = {"type": "enabled", "budget_tokens": THINKING_BUDGET}
    return body


def counted(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that counts the tokens of a chat's prompt."""
    kept = ("model", "system", "messages", "tools", "tool_choice", "chat_template_kwargs")
    return {name: value for name, value in request(chat).items() if name in kept}


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the turns: roles alternate, and tool results are merged with the user's next message."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = list(_blocks(message))
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    yield from turns


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
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


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    about = {"name": function["name"], "description": function.get("description", "")}
    return {**about, "input_schema": function["parameters"]}


def _choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"type": CHOICES[choice]}
    return {"type": "tool", "name": choice["function"]["name"]}


def answer(body: Any) -> dict[str, Any]:
    """Return a whole answer in the form of a chat's; an invalid answer has no choices."""
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        return {"choices": []}
    blocks = [block for block in body["content"][:MOST_BLOCKS] if isinstance(block, dict)]
    message: dict[str, Any] = {"role": "assistant", "content": _joined(blocks, "text")}
    message["thinking"] = _joined(blocks, "thinking")
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    reason = body.get("stop_reason")
    finished = FINISHED.get(reason) if isinstance(reason, str) else None
    found: dict[str, Any] = {"choices": [{"message": message, "finish_reason": finished}]}
    return found | {"usage": usage(body)}


def usage(body: Mapping[str, Any]) -> dict[str, int | None]:
    """Return an answer's usage by the names of a chat's. Prompt tokens are those read anew and those from a cache."""
    given = body.get("usage")
    row = given if isinstance(given, dict) else {}
    parts = [
        count_of(row.get(name)) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    prompt = None if parts[0] is None else sum(part or 0 for part in parts)
    return {"prompt_tokens": prompt, "completion_tokens": count_of(row.get("output_tokens"))}


def _joined(blocks: Sequence[Mapping[str, Any]], kind: str) -> str | None:
    pieces = (block.get(kind) for block in blocks if block.get("type") == kind)
    return "".join(piece for piece in pieces if isinstance(piece, str)) or None


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    arguments = given if isinstance(given, str) else json.dumps(given)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def assembled(events: Sequence[Any]) -> dict[str, Any]:
    """Return the events of a stream in the form of a chat's whole answer, assembled as clients do it."""
    blocks: dict[int, dict[str, Any]] = {}
    body: dict[str, Any] = {"usage": {}}
    for event in events:
        if not isinstance(event, dict):
            continue
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start":
            _add_usage(body, _mapping(event.get("message")))
        elif kind == "message_delta":
            _add_usage(body, event)
            body["stop_reason"] = _mapping(event.get("delta")).get("stop_reason") or body.get("stop_reason")
        elif type(index) is int and 0 <= index < MOST_BLOCKS:
            _add(blocks, index, event)
    content = [_closed(blocks[index]) for index in sorted(blocks)]
    return answer({**body, "content": content})


def _add(blocks: dict[int, dict[str, Any]], index: int, event: Mapping[str, Any]) -> None:
    """Add an event to its block; an event of a block that was never started is lost, as it is to a client."""
    if event.get("type") == "content_block_start":
        blocks[index] = {**_mapping(event.get("content_block")), "pieces": []}
    elif event.get("type") == "content_block_delta" and index in blocks:
        delta = _mapping(event.get("delta"))
        for name in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(name), str):
                blocks[index]["pieces"].append(delta[name])


def _closed(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block whose pieces are complete."""
    text, kind = "".join(block["pieces"]), block.get("type")
    if kind == "tool_use":
        return {**block, "input": text or block.get("input")}
    pending = block.get(str(kind))
    return {**block, str(kind): f"{pending if isinstance(pending, str) else ''}{text}"}


def _add_usage(body: dict[str, Any], event: Mapping[str, Any]) -> None:
    body["usage"] |= {name: value for name, value in _mapping(event.get("usage")).items() if value is not None}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

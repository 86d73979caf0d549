"""Convert chat requests to Anthropic's Messages API, as servers of open models implement it, and its answers to chat answers.

Sources: vLLM 0.32.0 (entrypoints/anthropic), and responses from vLLM 0.32.0 and llama-server b11549.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkwright.trust.bounds import count_or_none

#: types of the events that begin and end a stream
FIRST_EVENT_TYPE, LAST_EVENT_TYPES = "message_start", frozenset(("message_stop",))
#: maximum number of blocks in an answer
MAX_BLOCKS = 64
#: chat finish reasons, by this API's stop reasons
FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
#: this API's tool choices, by those of a chat request
TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
#: keys of a chat request that this API formats differently or lacks
CONVERTED_KEYS = frozenset(("messages", "tools", "tool_choice", "max_completion_tokens", "stream_options"))
#: Anthropic's minimum thinking budget
MIN_THINKING_TOKENS = 1024


def convert_request(chat: Mapping[str, Any], *, thinks: bool | None = None) -> dict[str, Any]:
    """Return a chat request in this API's format.

    chat: a request for /v1/chat/completions. thinks: request thinking, as Claude Code does.
    """
    body = {name: value for name, value in chat.items() if name not in CONVERTED_KEYS}
    system = [str(message.get("content") or "") for message in chat["messages"] if message["role"] == "system"]
    if system:
        body["system"] = "\n".join(system)
    body["messages"] = _merge_turns(chat["messages"])
    if chat.get("tools"):
        body["tools"] = [_convert_tool(tool["function"]) for tool in chat["tools"]]
        choice = chat.get("tool_choice") or "auto"
        named_choice = None if isinstance(choice, str) else {"type": "tool", "name": choice["function"]["name"]}
        body["tool_choice"] = named_choice or {"type": TOOL_CHOICES[choice]}
    if thinks and body.get("max_tokens", 0) > MIN_THINKING_TOKENS:
        body["thinking"] = {"type": "enabled", "budget_tokens": MIN_THINKING_TOKENS}
    return body


def build_count_request(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request to count the tokens of a chat's prompt."""
    names = ("model", "system", "messages", "tools", "tool_choice", "chat_template_kwargs")
    return {name: value for name, value in convert_request(chat).items() if name in names}


def _merge_turns(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge messages into turns with alternating roles; tool results belong to the user's turn."""
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
    return turns


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


def convert_answer(body: Any) -> dict[str, Any]:
    """Convert a complete answer to chat format; the result has no choices if the answer is invalid."""
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        return {"choices": []}
    blocks = [block for block in body["content"][:MAX_BLOCKS] if isinstance(block, dict)]
    message: dict[str, Any] = {"role": "assistant", "content": _join_text(blocks, "text")}
    message["thinking"] = _join_text(blocks, "thinking")
    calls = [_convert_call(block) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    stop_reason = body.get("stop_reason")
    finish_reason = FINISH_REASONS.get(stop_reason) if isinstance(stop_reason, str) else None
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": convert_usage(body)}


def convert_usage(body: Mapping[str, Any]) -> dict[str, int | None]:
    """Return an answer's usage in chat format; prompt tokens include cached ones."""
    usage = _as_mapping(body.get("usage"))
    input_tokens, *cached = (
        count_or_none(usage.get(name))
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    prompt_tokens = None if input_tokens is None else input_tokens + sum(count or 0 for count in cached)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": count_or_none(usage.get("output_tokens"))}


def _join_text(blocks: Sequence[Mapping[str, Any]], block_type: str) -> str | None:
    """Return the text of all blocks of a type; None if there is none."""
    texts = (block.get(block_type) for block in blocks if block.get("type") == block_type)
    return "".join(text for text in texts if isinstance(text, str)) or None


def _convert_call(block: Mapping[str, Any]) -> dict[str, Any]:
    tool_input = block.get("input")
    arguments = tool_input if isinstance(tool_input, str) else json.dumps(tool_input)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def assemble_stream(events: Sequence[Any]) -> dict[str, Any]:
    """Assemble a streamed answer into a complete chat answer, as clients do."""
    blocks: dict[int, dict[str, Any]] = {}
    body: dict[str, Any] = {"usage": {}}
    for event in events:
        if not isinstance(event, dict):
            continue
        event_type, index = event.get("type"), event.get("index")
        if event_type == "message_start":
            _add_usage(body, _as_mapping(event.get("message")))
        elif event_type == "message_delta":
            _add_usage(body, event)
            body["stop_reason"] = _as_mapping(event.get("delta")).get("stop_reason") or body.get("stop_reason")
        elif type(index) is int and 0 <= index < MAX_BLOCKS:
            _add_to_block(blocks, index, event)
    content = [_complete_block(blocks[index]) for index in sorted(blocks)]
    return convert_answer({**body, "content": content})


def _add_to_block(blocks: dict[int, dict[str, Any]], index: int, event: Mapping[str, Any]) -> None:
    """Add an event to its block. Like clients, ignore an event for a block that has not been started."""
    if event.get("type") == "content_block_start":
        blocks[index] = {**_as_mapping(event.get("content_block")), "pieces": []}
    elif event.get("type") == "content_block_delta" and index in blocks:
        delta = _as_mapping(event.get("delta"))
        for name in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(name), str):
                blocks[index]["pieces"].append(delta[name])


def _complete_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block with its pieces joined into the tool's input or the block's text."""
    text, block_type = "".join(block["pieces"]), str(block.get("type"))
    if block_type == "tool_use":
        return {**block, "input": text or block.get("input")}
    first_text = block.get(block_type)
    return {**block, block_type: f"{first_text if isinstance(first_text, str) else ''}{text}"}


def _add_usage(body: dict[str, Any], event: Mapping[str, Any]) -> None:
    body["usage"] |= {name: value for name, value in _as_mapping(event.get("usage")).items() if value is not None}


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

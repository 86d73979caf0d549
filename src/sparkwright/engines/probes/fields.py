"""Probes of an answer's fields: thinking apart from the text, and a tool call that a client can use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted

REASONING_TOKENS = 1536


def judge_reasoning(reply: Reply) -> Seen:
    """Judge if the thinking is separate from the content."""
    if reply.cut:
        where = f"in `{reply.thinking_field}`" if reply.thinking else "in the content"
        return Seen("inconclusive", f"the answer had not ended within {REASONING_TOKENS} tokens, all of them {where}")
    if not reply.content:
        came = f"; `{reply.thinking_field}` holds {quoted(reply.thinking)}" if reply.thinking else ""
        return Seen("disproved", f"content is null although the answer ended{came}", "content null")
    if not reply.thinking:
        return Seen("disproved", f"no thinking apart from the content: {quoted(reply.content)}", "no thinking apart")
    return Seen("proved", f"thinking in `{reply.thinking_field}`, the answer in the content")


def judge_answer(reply: Reply) -> Seen:
    """Judge an answer with or without thinking before it: it must not be empty."""
    if reply.cut and not reply.content:
        return Seen("inconclusive", f"the answer had not ended within {REASONING_TOKENS} tokens")
    if not reply.content:
        came = f"; `{reply.thinking_field}` holds {quoted(reply.thinking)}" if reply.thinking else ""
        return Seen("disproved", f"content is null although the answer ended{came}", "content null")
    return Seen("proved", f"the answer is in the content: {quoted(reply.content)}")


def judge_off(reply: Reply) -> Seen:
    """Judge an answer for which thinking was turned off."""
    seen = judge_answer(reply)
    note = "it thinks although a request turns that off" if reply.thinking else ""
    return replace(seen, note=note)


def judge_effort(reply: Reply) -> Seen:
    """Judge an answer for which thinking was turned off and an effort was set, which clients take for a hint about depth only."""
    note = f"`{EFFORT}` turns thinking on, also where a request turns it off" if reply.thinking else ""
    return replace(judge_answer(reply), note=note)


EFFORT = "reasoning_effort"
REASONING_PROBE = Probe(
    "reasoning",
    CHAT,
    {
        "messages": [{"role": "user", "content": "Which is larger, 9.11 or 9.9? Think briefly, then name the number."}],
        "max_tokens": REASONING_TOKENS,
    },
    judge_reasoning,
    thinks=True,
)
#: requests of clients that do not mention thinking, turn it off, or also set an effort
REASONING_VARIANTS = (
    REASONING_PROBE.in_a_stream(),
    replace(REASONING_PROBE, name="reasoning, not said", rule=judge_answer, thinks=None, variant=True),
    replace(REASONING_PROBE, name="reasoning, off", rule=judge_off, thinks=False, variant=True),
    replace(
        REASONING_PROBE, name="reasoning, off, streamed", rule=judge_off, thinks=False, variant=True, streamed=True
    ),
    replace(
        REASONING_PROBE,
        name=f"reasoning, off, with {EFFORT}",
        body={**REASONING_PROBE.body, EFFORT: "low"},
        rule=judge_effort,
        thinks=False,
        variant=True,
        optional=True,
    ),
)


NAME, ARGUMENT = "get_weather", "city"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "The present weather of a city.",
        "parameters": {"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]},
    },
}
#: a call is 40 tokens or so; gpt-oss always thinks before it
TOOL_CALL_TOKENS = 768
#: formats of a call before a parser extracts it: Hermes and Qwen, Qwen coder, Mistral, Llama, DeepSeek, GLM, Kimi, gpt-oss
MARKS = re.compile(
    r"<tool_call|<function=|<function_call|\[TOOL_CALLS\]|<\|python_tag\|>|<｜tool|<\|tool_call|<arg_key>|to=functions\."
    rf"|{NAME}\"?'?\s*[({{,]|\"name\"\s*:\s*\"{NAME}\""
)
#: length of an answer that is searched for them
SEARCHED_CHARS = 1 << 14


def judge_tool_call(reply: Reply) -> Seen:
    """Judge if the answer holds a proper tool call."""
    calls = reply.message_of.get("tool_calls")
    if isinstance(calls, list) and calls:
        return _call(calls[0])
    if reply.cut:
        came = quoted(reply.content or reply.thinking)
        return Seen(
            "inconclusive", f"no tool call within {TOOL_CALL_TOKENS} tokens, and the answer had not ended: {came}"
        )
    if MARKS.search(reply.content[:SEARCHED_CHARS]):
        return Seen(
            "disproved", f"the tool call came as text in the content: {quoted(reply.content)}", "tool call as text"
        )
    if MARKS.search(reply.thinking[:SEARCHED_CHARS]):
        return Seen(
            "disproved", f"the tool call is in the thinking: {quoted(reply.thinking)}", "tool call in the thinking"
        )
    if not reply.content:
        return Seen("disproved", "content is null, and there is no tool call", "content null")
    return Seen("disproved", f"it answered in words instead of calling: {quoted(reply.content)}", "no tool call")


def _call(call: Any) -> Seen:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    given = function.get("arguments") if isinstance(function, dict) else None
    if name != NAME:
        return Seen(
            "disproved", f"it called {quoted(str(name))}, which was not offered", "tool call with bad arguments"
        )
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        arguments = None
    value = arguments.get(ARGUMENT) if isinstance(arguments, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        return Seen("disproved", f"the arguments of the call are {quoted(str(given))}", "tool call with bad arguments")
    return Seen("proved", f"called {NAME} with {quoted(value)}")


def judge_second(reply: Reply) -> Seen:
    """Judge if the second turn has a tool call, with the argument of that turn."""
    seen = judge_tool_call(reply)
    if seen.verdict == "proved" and SECOND_CITY.lower() not in seen.evidence.lower():
        return Seen("disproved", f"asked about {SECOND_CITY} it {seen.evidence}", "no tool call")
    return seen


def judge_none(reply: Reply) -> Seen:
    """Judge if `tool_choice: none` was obeyed: text, and no call."""
    calls = reply.message_of.get("tool_calls")
    if (isinstance(calls, list) and calls) or MARKS.search(reply.content[:SEARCHED_CHARS]):
        return Seen("disproved", "it called a tool although `tool_choice` was none", "tool choice ignored")
    if reply.cut and not reply.content:
        return Seen("inconclusive", f"no answer within {TOOL_CALL_TOKENS} tokens")
    if not reply.content:
        return Seen("disproved", "content is null with `tool_choice: none`", "content null")
    return Seen("proved", f"answered in words with `tool_choice: none`: {quoted(reply.content)}")


def judge_required(reply: Reply) -> Seen:
    """Judge an answer to a question that needs no tool, with `tool_choice: required`; text instead of a call gives a note."""
    calls = reply.message_of.get("tool_calls")
    if isinstance(calls, list) and calls:
        return Seen("proved", "called a tool with `tool_choice: required`")
    return Seen("proved", f"answered in words: {quoted(reply.content)}", note="`tool_choice: required` is ignored")


TOOL_CALL_PROBE = Probe(
    "tool_call",
    CHAT,
    {
        "messages": [{"role": "user", "content": f"What is the weather in Paris now? Call {NAME}."}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "max_tokens": TOOL_CALL_TOKENS,
    },
    judge_tool_call,
    refused="tools refused",
)

SECOND_CITY = "Rome"
#: messages of a client that ran the tool: the call, its result, and another question
TURNS = [
    {"role": "user", "content": f"What is the weather in Paris now? Call {NAME}."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": NAME, "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": "Rain, 11 degrees"},
    {"role": "user", "content": f"And the weather in {SECOND_CITY} now? Call {NAME} again."},
]
#: agents send some 40 tools; a shipped NVFP4 model writes its calls as text past some number of them
TOOLS = 40
OTHERS = [
    {
        "type": "function",
        "function": {
            "name": f"{verb}_{noun}",
            "description": f"{verb.capitalize()} a {noun}.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    }
    for verb in ("open", "close", "list", "rename", "copy", "delete", "archive", "share")
    for noun in ("file", "note", "ticket", "calendar", "photo")
]
#: enough for a model that thinks by default
UNSAID_TOKENS = 2048
TOOL_CALL_VARIANTS = (
    TOOL_CALL_PROBE.in_a_stream(),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, thinking not said",
        body={**TOOL_CALL_PROBE.body, "max_tokens": UNSAID_TOKENS},
        thinks=None,
    ).in_a_stream(),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, second turn",
        body={**TOOL_CALL_PROBE.body, "messages": TURNS},
        rule=judge_second,
        variant=True,
    ),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, second turn",
        body={**TOOL_CALL_PROBE.body, "messages": TURNS},
        rule=judge_second,
    ).in_a_stream(),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, tool_choice none",
        body={**TOOL_CALL_PROBE.body, "tool_choice": "none"},
        rule=judge_none,
        variant=True,
    ),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, tool_choice required",
        body={
            **TOOL_CALL_PROBE.body,
            "messages": [{"role": "user", "content": "Say hello."}],
            "tool_choice": "required",
        },
        rule=judge_required,
        variant=True,
        optional=True,
    ),
    replace(
        TOOL_CALL_PROBE,
        name=f"tool_call, {TOOLS} tools",
        body={**TOOL_CALL_PROBE.body, "tools": [*OTHERS[: TOOLS // 2], TOOL, *OTHERS[TOOLS // 2 : TOOLS - 1]]},
    ).in_a_stream(),
)

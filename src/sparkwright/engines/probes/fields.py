"""Probes of an answer's fields: thinking separate from the content, and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.engines.model.chat_template import EFFORT_FIELD
from sparkwright.engines.openai_api import CHAT_PATH
from sparkwright.engines.probes.probe import Probe, ProbeResult, Reply, quote_text

REASONING_TOKENS = 1536
#: enough for a model that thinks by default
DEFAULT_THINKING_TOKENS = 2048
TOOL_NAME, TOOL_ARGUMENT = "get_weather", "city"
TOOL = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "The present weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {TOOL_ARGUMENT: {"type": "string"}},
            "required": [TOOL_ARGUMENT],
        },
    },
}
#: enough for thinking, which gpt-oss cannot turn off, and about 40 tokens for the call
TOOL_CALL_TOKENS = 768
#: pattern of a tool call that no parser extracted, in the formats of Hermes and Qwen, Qwen coder, Mistral, Llama, DeepSeek, GLM, Kimi
#: and gpt-oss
TOOL_CALL_MARK_PATTERN = re.compile(
    r"<tool_call|<function=|<function_call|\[TOOL_CALLS\]|<\|python_tag\|>|<｜tool|<\|tool_call|<arg_key>|to=functions\."
    rf"|{TOOL_NAME}\"?'?\s*[({{,]|\"name\"\s*:\s*\"{TOOL_NAME}\""
)
#: number of characters of an answer that are searched for a call
MAX_SEARCHED_CHARS = 1 << 14
SECOND_CITY = "Rome"
#: a conversation with a tool call, its result, and another question
SECOND_TURN_MESSAGES = [
    {"role": "user", "content": f"What is the weather in Paris now? Call {TOOL_NAME}."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": TOOL_NAME, "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": "Rain, 11 degrees"},
    {"role": "user", "content": f"And the weather in {SECOND_CITY} now? Call {TOOL_NAME} again."},
]
#: number of tools, as many as agents send; with many tools, one NVFP4 model wrote its calls as text
MANY_TOOLS = 40
OTHER_TOOLS = [
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


def evaluate_reasoning(reply: Reply) -> ProbeResult:
    """Check that the thinking is separate from the content."""
    if reply.is_truncated:
        field = f"`{reply.thinking_field}`" if reply.thinking else "the content"
        evidence = f"the answer was incomplete after {REASONING_TOKENS} tokens, all of them in {field}"
        return ProbeResult("inconclusive", evidence)
    if not reply.content:
        return _report_null_content(reply)
    if not reply.thinking:
        evidence = f"no thinking outside the content: {quote_text(reply.content)}"
        return ProbeResult("disproved", evidence, "no thinking apart")
    return ProbeResult("proved", f"thinking in `{reply.thinking_field}`, the answer in the content")


def _report_null_content(reply: Reply) -> ProbeResult:
    thinking = f"; `{reply.thinking_field}` contains {quote_text(reply.thinking)}" if reply.thinking else ""
    return ProbeResult("disproved", f"content is null in a complete answer{thinking}", "content null")


def evaluate_answer(reply: Reply) -> ProbeResult:
    """Check that an answer has content, with or without thinking before it."""
    if reply.content:
        return ProbeResult("proved", f"the answer is in the content: {quote_text(reply.content)}")
    if reply.is_truncated:
        return ProbeResult("inconclusive", f"the answer was incomplete after {REASONING_TOKENS} tokens")
    return _report_null_content(reply)


def evaluate_thinking_off(reply: Reply) -> ProbeResult:
    """Check an answer to a request that turns thinking off. Thinking is noted, but is not a fault."""
    note = "it thinks although a request turns thinking off" if reply.thinking else ""
    return replace(evaluate_answer(reply), note=note)


def evaluate_thinking_effort(reply: Reply) -> ProbeResult:
    """Check an answer to a request that turns thinking off and sets its effort. Thinking is noted, but is not a fault."""
    note = f"`{EFFORT_FIELD}` turns thinking on, even if a request turns it off" if reply.thinking else ""
    return replace(evaluate_answer(reply), note=note)


REASONING_PROBE = Probe(
    "reasoning",
    CHAT_PATH,
    {
        "messages": [{"role": "user", "content": "Which is larger, 9.11 or 9.9? Think briefly, then name the number."}],
        "max_tokens": REASONING_TOKENS,
    },
    evaluate_reasoning,
    thinks=True,
)
#: requests as clients send them that do not mention thinking, that turn it off, or that also set an effort
REASONING_VARIANTS = (
    REASONING_PROBE.as_stream(),
    replace(REASONING_PROBE, name="reasoning, not mentioned", rule=evaluate_answer, thinks=None, variant=True),
    replace(REASONING_PROBE, name="reasoning, off", rule=evaluate_thinking_off, thinks=False, variant=True),
    replace(
        REASONING_PROBE,
        name="reasoning, off, streamed",
        rule=evaluate_thinking_off,
        thinks=False,
        variant=True,
        streamed=True,
    ),
    replace(
        REASONING_PROBE,
        name=f"reasoning, off, with {EFFORT_FIELD}",
        body={**REASONING_PROBE.body, EFFORT_FIELD: "low"},
        rule=evaluate_thinking_effort,
        thinks=False,
        variant=True,
        optional=True,
    ),
)


def evaluate_tool_call(reply: Reply) -> ProbeResult:
    """Check that the answer contains a valid tool call."""
    calls = reply.first_message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return _evaluate_call(calls[0])
    content, thinking = quote_text(reply.content), quote_text(reply.thinking)
    if reply.is_truncated:
        excerpt = content if reply.content else thinking
        evidence = f"no tool call in the first {TOOL_CALL_TOKENS} tokens of an incomplete answer: {excerpt}"
        return ProbeResult("inconclusive", evidence)
    if TOOL_CALL_MARK_PATTERN.search(reply.content[:MAX_SEARCHED_CHARS]):
        return ProbeResult("disproved", f"the tool call came as text in the content: {content}", "tool call as text")
    if TOOL_CALL_MARK_PATTERN.search(reply.thinking[:MAX_SEARCHED_CHARS]):
        return ProbeResult("disproved", f"the tool call is in the thinking: {thinking}", "tool call in the thinking")
    if not reply.content:
        return ProbeResult("disproved", "content is null, and there is no tool call", "content null")
    return ProbeResult("disproved", f"it answered with text instead of a tool call: {content}", "no tool call")


def _evaluate_call(call: Any) -> ProbeResult:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    raw_arguments = function.get("arguments") if isinstance(function, dict) else None
    if name != TOOL_NAME:
        evidence = f"it called {quote_text(str(name))}, which is not one of its tools"
        return ProbeResult("disproved", evidence, "tool call with bad arguments")
    try:
        arguments = json.loads(raw_arguments) if isinstance(raw_arguments, str) else raw_arguments
    except (ValueError, RecursionError):
        arguments = None
    value = arguments.get(TOOL_ARGUMENT) if isinstance(arguments, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        evidence = f"the tool call has the arguments {quote_text(str(raw_arguments))}"
        return ProbeResult("disproved", evidence, "tool call with bad arguments")
    return ProbeResult("proved", f"called {TOOL_NAME} with {quote_text(value)}")


def evaluate_second_turn(reply: Reply) -> ProbeResult:
    """Check that the second turn has a tool call with the city of the second question."""
    result = evaluate_tool_call(reply)
    if result.verdict == "proved" and SECOND_CITY.lower() not in result.evidence.lower():
        return ProbeResult("disproved", f"for a question about {SECOND_CITY}, it {result.evidence}", "no tool call")
    return result


def evaluate_tool_choice_none(reply: Reply) -> ProbeResult:
    """Check that the answer is text without a tool call, as `tool_choice: none` demands."""
    calls = reply.first_message.get("tool_calls")
    if (isinstance(calls, list) and calls) or TOOL_CALL_MARK_PATTERN.search(reply.content[:MAX_SEARCHED_CHARS]):
        return ProbeResult("disproved", "it called a tool although `tool_choice` was none", "tool choice ignored")
    if reply.content:
        return ProbeResult("proved", f"answered with text for `tool_choice: none`: {quote_text(reply.content)}")
    if reply.is_truncated:
        return ProbeResult("inconclusive", f"no answer within {TOOL_CALL_TOKENS} tokens")
    return ProbeResult("disproved", "content is null with `tool_choice: none`", "content null")


def evaluate_tool_choice_required(reply: Reply) -> ProbeResult:
    """Check for a tool call that `tool_choice: required` forces although the prompt needs none. Text is noted, but not a fault."""
    calls = reply.first_message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return ProbeResult("proved", "called a tool with `tool_choice: required`")
    evidence = f"answered with text: {quote_text(reply.content)}"
    return ProbeResult("proved", evidence, note="`tool_choice: required` is ignored")


TOOL_CALL_PROBE = Probe(
    "tool_call",
    CHAT_PATH,
    {
        "messages": [{"role": "user", "content": f"What is the weather in Paris now? Call {TOOL_NAME}."}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "max_tokens": TOOL_CALL_TOKENS,
    },
    evaluate_tool_call,
    refusal_fault="tools refused",
)

TOOL_CALL_VARIANTS = (
    TOOL_CALL_PROBE.as_stream(),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, thinking not mentioned",
        body={**TOOL_CALL_PROBE.body, "max_tokens": DEFAULT_THINKING_TOKENS},
        thinks=None,
    ).as_stream(),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, second turn",
        body={**TOOL_CALL_PROBE.body, "messages": SECOND_TURN_MESSAGES},
        rule=evaluate_second_turn,
        variant=True,
    ),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, second turn",
        body={**TOOL_CALL_PROBE.body, "messages": SECOND_TURN_MESSAGES},
        rule=evaluate_second_turn,
    ).as_stream(),
    replace(
        TOOL_CALL_PROBE,
        name="tool_call, tool_choice none",
        body={**TOOL_CALL_PROBE.body, "tool_choice": "none"},
        rule=evaluate_tool_choice_none,
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
        rule=evaluate_tool_choice_required,
        variant=True,
        optional=True,
    ),
    replace(
        TOOL_CALL_PROBE,
        name=f"tool_call, {MANY_TOOLS} tools",
        body={
            **TOOL_CALL_PROBE.body,
            "tools": [*OTHER_TOOLS[: MANY_TOOLS // 2], TOOL, *OTHER_TOOLS[MANY_TOOLS // 2 : MANY_TOOLS - 1]],
        },
    ).as_stream(),
)

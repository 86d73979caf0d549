"""Chat requests converted to other APIs, and recorded answers of real servers converted back."""

import json
from typing import Any

import pytest

from sparkwright.engines import dialects, messages_api
from sparkwright.engines.dialects import MESSAGES, RESPONSES, Dialect
from sparkwright.engines.probes import fields, table
from sparkwright.engines.probes.probe import Reply
from tests.sandbox.vllm.serve_help import HELP

RECORDED = json.loads((HELP.parent / "apis/answers.json").read_text())
BY_PREFIX = {"m": MESSAGES, "r": RESPONSES}
CHAT: dict[str, Any] = {
    "model": "m",
    **fields.TOOL_CALL_PROBE.body,
    "max_tokens": 9,
    "messages": fields.SECOND_TURN_MESSAGES,
}


def parse_events(name: str) -> list[dict[str, Any]]:
    """Return the events of a recorded stream."""
    return [json.loads(line[6:]) for line in RECORDED[name]["text"].splitlines() if line.startswith("data: ")]


def convert_recorded(name: str) -> dict[str, Any]:
    """Return a recorded answer as a chat answer."""
    dialect = BY_PREFIX[name[0]]
    if not name.endswith("-stream"):
        return dialect.convert_answer(json.loads(RECORDED[name]["text"]))
    events = parse_events(name)
    assert not dialect.find_order_error(events) and events[-1]["type"] in dialect.last_event_types
    return dialect.assemble_answer(events)


@pytest.mark.parametrize("api", ["m", "r"])
@pytest.mark.parametrize("stream", ["", "-stream"])
def test_real_answers_are_converted_to_chat_answers(api: str, stream: str) -> None:
    call, thinking, truncated = (
        Reply(200, "", convert_recorded(f"{api}-{kind}{stream}")) for kind in ("tool", "think", "length")
    )
    assert fields.evaluate_tool_call(call).verdict == "proved"
    assert thinking.content.strip() == "The larger number is 9.9."
    assert thinking.thinking.strip() == "9.90 is more than 9.11."
    assert truncated.is_truncated and not thinking.is_truncated
    assert convert_recorded(f"{api}-tool{stream}")["usage"] == {"prompt_tokens": 10, "completion_tokens": 4}


def test_cached_prompt_tokens_count() -> None:
    row = {"input_tokens": 3, "cache_read_input_tokens": 7, "cache_creation_input_tokens": None, "output_tokens": 2}
    assert messages_api.convert_usage({"usage": row}) == {"prompt_tokens": 10, "completion_tokens": 2}


def test_tool_turns_are_converted_to_the_messages_api() -> None:
    body = MESSAGES.convert_request(CHAT)
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "text"]
    assert body["tools"][0]["input_schema"]["required"] == ["city"] and body["tool_choice"] == {"type": "auto"}
    assert "max_tokens" not in messages_api.build_count_request(CHAT)


def test_tool_turns_are_converted_to_the_responses_api() -> None:
    body = RESPONSES.convert_request(CHAT)
    assert [item.get("type") for item in body["input"]] == [None, "function_call", "function_call_output", None]
    assert (body["max_output_tokens"], body["tools"][0]["name"]) == (9, "get_weather")


def test_a_stream_without_its_beginning_is_disproved() -> None:
    events = parse_events("m-tool-stream")[1:]
    disorder = MESSAGES.find_order_error(events)
    assert "content_block_start" in disorder
    outcome = table.API_PROBES["messages"].evaluate(Reply(200, "", MESSAGES.assemble_answer(events), disorder))
    assert (outcome.verdict, outcome.fault) == ("disproved", "events out of order")


@pytest.mark.parametrize("dialect", dialects.DIALECTS_BY_PATH.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "answer",
    [
        *(None, [], {}, {"content": [3], "output": [3]}, {"content": "x", "output": "x", "usage": 4}),
        {"type": "content_block_delta", "index": 10**9, "delta": {"text": 1}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": ["text"]}},
        {"content": [{"type": ["x"]}], "stop_reason": ["x"], "output": [{"type": "message", "content": [{"text": 3}]}]},
    ],
)
def test_malformed_answers_prove_nothing(dialect: Dialect, answer: Any) -> None:
    for body in (dialect.convert_answer(answer), dialect.assemble_answer([answer])):
        assert fields.evaluate_tool_call(Reply(200, "", body)).verdict != "proved"


@pytest.mark.parametrize(
    ("counts", "verdict", "evidence"),
    [
        ({"counted": 9, "prompt": 10}, "disproved", "counts 9 tokens, but the answer's usage has 10"),
        ({}, "disproved", ""),
        ({"counted": 3, "prompt": 3}, "proved", ""),
    ],
)
def test_a_count_that_differs_from_the_usage_is_disproved(counts: dict[str, int], verdict: str, evidence: str) -> None:
    outcome = table.evaluate_token_count(Reply(200, "", counts))
    assert outcome.verdict == verdict and evidence in outcome.evidence

"""A chat in the form of other APIs, and their answers, as real servers gave them, in the form of a chat."""

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


def read_recorded(name: str) -> dict[str, Any]:
    """Return a recorded answer in a chat's form."""
    dialect, text = BY_PREFIX[name[0]], RECORDED[name]["text"]
    if not name.endswith("-stream"):
        return dialect.convert_answer(json.loads(text))
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert not dialect.find_disorder(events) and events[-1]["type"] in dialect.last_events
    return dialect.assemble_answer(events)


@pytest.mark.parametrize("api", ["m", "r"])
@pytest.mark.parametrize("stream", ["", "-stream"])
def test_real_answers_are_converted_to_chat_answers(api: str, stream: str) -> None:
    call, thought, cut = (
        Reply(200, "", read_recorded(f"{api}-{kind}{stream}")) for kind in ("tool", "think", "length")
    )
    assert fields.evaluate_tool_call(call).verdict == "proved"
    assert (thought.content.strip(), thought.thinking.strip()) == (
        "The larger number is 9.9.",
        "9.90 is more than 9.11.",
    )
    assert cut.is_truncated and not thought.is_truncated
    assert read_recorded(f"{api}-tool{stream}")["usage"] == {"prompt_tokens": 10, "completion_tokens": 4}


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
    text = RECORDED["m-tool-stream"]["text"]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")][1:]
    disorder = MESSAGES.find_disorder(events)
    assert "content_block_start" in disorder
    outcome = table.API_PROBES["messages"].evaluate(Reply(200, "", MESSAGES.assemble_answer(events), disorder))
    assert (outcome.verdict, outcome.fault) == ("disproved", "events out of order")


@pytest.mark.parametrize("dialect", dialects.BY_PATH.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "given",
    [
        *(None, [], {}, {"content": [3], "output": [3]}, {"content": "x", "output": "x", "usage": 4}),
        {"type": "content_block_delta", "index": 10**9, "delta": {"text": 1}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": ["text"]}},
        {"content": [{"type": ["x"]}], "stop_reason": ["x"], "output": [{"type": "message", "content": [{"text": 3}]}]},
    ],
)
def test_malformed_answers_prove_nothing(dialect: Dialect, given: Any) -> None:
    for body in (dialect.convert_answer(given), dialect.assemble_answer([given])):
        assert fields.evaluate_tool_call(Reply(200, "", body)).verdict != "proved"


def test_a_count_that_differs_from_the_usage_is_disproved() -> None:
    judged = [
        table.evaluate_token_count(Reply(200, "", body))
        for body in ({"counted": 9, "prompt": 10}, {}, {"counted": 3, "prompt": 3})
    ]
    assert [item.verdict for item in judged] == ["disproved", "disproved", "proved"]
    assert "counts 9 tokens, but the answer's usage has 10" in judged[0].evidence

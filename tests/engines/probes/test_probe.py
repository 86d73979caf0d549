"""Verdicts on answers to probes, from bodies as engines send them; random-weights answers are real ones of vLLM 0.32.0 on a CPU."""

import json
from typing import Any

import pytest

from sparkwright.engines import engine, openai_api
from sparkwright.engines.probes import content, fields, table
from sparkwright.engines.probes.probe import Reply

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
LOOP = "icen Conicen+asedicen+icen+icen\n    icen\n    \n     them\n"


def reply(reason: str = "stop", **message: Any) -> Reply:
    return Reply(
        200, "", {"choices": [{"message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}]}
    )


def tool_call_reply(arguments: Any, name: str = "get_weather") -> Reply:
    return reply("tool_calls", tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    ("probe", "answer", "verdict", "fault"),
    [
        ("tool_call", reply("tool_calls", tool_calls=[CALL]), "proved", None),
        ("tool_call", tool_call_reply("{not json"), "disproved", "tool call with bad arguments"),
        ("tool_call", tool_call_reply("{}"), "disproved", "tool call with bad arguments"),
        ("tool_call", tool_call_reply('{"city": "Paris"}', "get_time"), "disproved", "tool call with bad arguments"),
        ("tool_call", reply(content='<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'), "disproved", "tool call as text"),
        ("tool_call", reply(content='[TOOL_CALLS]get_weather{"city": "Paris"}'), "disproved", "tool call as text"),
        ("tool_call", reply(content='get_weather(city="Paris")'), "disproved", "tool call as text"),
        ("tool_call", reply(reasoning="<function=get_weather>"), "disproved", "tool call in the thinking"),
        ("tool_call", reply(), "disproved", "content null"),
        ("tool_call", reply(content="It is sunny. I would use get_weather."), "disproved", "no tool call"),
        ("tool_call", reply("length", content=LOOP), "inconclusive", None),
        ("tool_call", reply("length", content='<tool_call>{"name": "get_weather", "arguments": false}'), "inconclusive", None),
        ("reasoning", reply(content="9.9", reasoning="9.9 is 9.90."), "proved", None),
        ("reasoning", reply(content="9.9", reasoning_content="9.9 is 9.90."), "proved", None),
        ("reasoning", reply(content="<think>so</think>9.9"), "disproved", "thinking in content"),
        ("reasoning", reply(content="so</think>9.9"), "disproved", "thinking in content"),
        ("reasoning", reply(content="<|channel|>analysis so"), "disproved", "thinking in content"),
        ("reasoning", reply(reasoning="all of it"), "disproved", "content null"),
        ("reasoning", reply(content="9.9"), "disproved", "no thinking apart"),
        ("reasoning", reply("length", reasoning=LOOP), "inconclusive", None),
        ("json_schema", reply(content='{"city": "Oslo", "capital": true}'), "proved", None),
        ("json_schema", reply(content='```json\n{"city": "Oslo", "capital": true}\n```'), "disproved", "not the schema"),
        ("json_schema", reply(content='{"city": "Bergen", "capital": true}'), "disproved", "not the schema"),
        ("json_schema", reply(content='{"city": "Oslo", "capital": 1}'), "disproved", "not the schema"),
        ("json_schema", reply(), "disproved", "content null"),
        ("json_schema", reply("length", content="{\n    \n    \n"), "inconclusive", None),
        ("image", reply(content="Red."), "proved", None),
        ("image", reply(content="Blue"), "disproved", "picture not seen"),
        ("image", reply(content="</think>\n\nRed."), "disproved", "thinking in content"),
        ("tool_call", reply("tool_calls", content="</think>", tool_calls=[CALL]), "disproved", "thinking in content"),
        ({"language": "de"}, reply(content="</think>\n\nEine Woche hat sieben Tage, und der erste ist der Montag."), "disproved", "thinking in content"),
        ("image", reply(content="I am bored"), "disproved", "picture not seen"),
        ({"language": "de"}, reply(content="Eine Woche hat sieben Tage, und der erste ist der Montag."), "proved", None),
        ({"language": "de"}, reply(content="A week has seven days, and the first is Monday."), "disproved", "another language"),
        ({"language": "zh"}, reply(content="一周有七天，第一天是星期一。"), "proved", None),
        ({"language": "zh"}, reply(content="A week has seven days."), "disproved", "another language"),
        ({"embedding_dimension": 3}, Reply(200, "", {"data": [{"embedding": [0.1, 0.2, 0.3]}]}), "proved", None),
        ({"embedding_dimension": 4}, Reply(200, "", {"data": [{"embedding": [0.1, 0.2, 0.3]}]}), "disproved", "another dimension"),
    ],
)  # fmt: skip
def test_answers_are_judged_by_rules(probe: Any, answer: Reply, verdict: str, fault: str | None) -> None:
    (value,) = table.parse_probes([probe])
    outcome = value.evaluate(answer)
    assert (outcome.verdict, outcome.fault) == (verdict, fault)
    assert len(outcome.evidence) < 300


@pytest.mark.parametrize(
    "body", [None, [], {"choices": []}, {"choices": [3]}, {"choices": [{"message": {"content": 7}}]}, {"data": 4}]
)
def test_malformed_answers_are_disproved(body: Any) -> None:
    for item in table.parse_probes([*table.PLAIN_PROBES, {"language": "fr"}, {"embedding_dimension": 3}]):
        assert item.evaluate(Reply(200, "", body)).verdict == "disproved"


def test_each_language_is_distinguished_by_its_question() -> None:
    for name in content.LANGUAGES:
        spoken = [other for other, value in content.LANGUAGES.items() if content.is_in_language(name, value.prompt)]
        assert name in spoken or name == "en", name
        assert "en" not in spoken or name == "en", name


def test_every_engine_names_a_flag_for_every_fault() -> None:
    named = {name: set(engine.get_engine(name).probe_flags.causes) for name in ("vllm", "sglang", "llama_cpp")}
    assert named["vllm"] == named["sglang"] == named["llama_cpp"]
    assert all("--" in cause for cause in engine.get_engine("vllm").probe_flags.causes.values())


def test_the_picture_is_a_complete_png(tmp_path: Any) -> None:
    data = content.build_png(2, b"\x01\x02\x03")
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")  # its checksum is the same in every PNG


def test_invalid_probes_are_refused() -> None:
    for wrong in (
        "tools",
        {"language": "xx"},
        {"embedding_dimension": 0},
        {"embedding_dimension": True},
        {},
        4,
        None,
        {"a": 1, "b": 2},
    ):
        assert table.check_probe(wrong), wrong
    assert json.dumps(table.schema())


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (tool_call_reply('{"city":"Rome"}'), "proved"),
        (tool_call_reply('{"city":"Paris"}'), "disproved"),
        (tool_call_reply("{}"), "disproved"),
        (reply(content="It rains in Rome."), "disproved"),
    ],
)
def test_a_second_turn_is_judged_by_its_question(answer: Reply, verdict: str) -> None:
    second = next(probe for probe in fields.TOOL_CALL_VARIANTS if probe.name == "tool_call, second turn")
    assert second.evaluate(answer).verdict == verdict


def test_a_call_despite_tool_choice_none_is_a_fault() -> None:
    none = next(probe for probe in fields.TOOL_CALL_VARIANTS if probe.name == "tool_call, tool_choice none")
    assert none.evaluate(reply("tool_calls", tool_calls=[CALL])).fault == "tool choice ignored"
    assert none.evaluate(reply(content="It is sunny in Paris.")).verdict == "proved"


@pytest.mark.parametrize(
    ("name", "answer", "verdict", "note"),
    [
        ("reasoning, not mentioned", reply(content="9.9", reasoning="9.9 is 9.90."), "proved", ""),
        ("reasoning, not mentioned", reply(reasoning="The answer is 9.9."), "disproved", ""),
        ("reasoning, not mentioned", reply(content="</think>\n9.9"), "disproved", ""),
        ("reasoning, off", reply(content="9.9"), "proved", ""),
        ("reasoning, off", reply("length", content="9.9 is larger since"), "proved", ""),
        ("reasoning, off", reply("length", reasoning=LOOP), "inconclusive", "thinks although"),
        ("reasoning, off", reply(content="9.9", reasoning="so"), "proved", "thinks although"),
        ("reasoning, off, streamed", reply(reasoning="9.9"), "disproved", "thinks although"),
        ("reasoning, off, with reasoning_effort", reply(content="9.9", reasoning="so"), "proved", "`reasoning_effort` turns thinking on"),
    ],
)  # fmt: skip
def test_an_answer_is_required_with_thinking_off_or_not_mentioned(
    name: str, answer: Reply, verdict: str, note: str
) -> None:
    (probe,) = (variant for variant in table.variants(fields.REASONING_PROBE) if variant.name == name)
    outcome = probe.evaluate(answer)
    assert outcome.verdict == verdict
    assert note in outcome.note and bool(note) == bool(outcome.note)


def test_text_despite_tool_choice_required_is_a_note() -> None:
    (probe,) = (variant for variant in table.variants(fields.TOOL_CALL_PROBE) if variant.name.endswith("required"))
    assert probe.evaluate(tool_call_reply('{"city": "Paris"}')).note == ""
    assert (probe.evaluate(reply(content="Hello!")).verdict, probe.evaluate(reply(content="Hello!")).note) == (
        "proved",
        "`tool_choice: required` is ignored",
    )


def test_the_request_with_many_tools_has_distinct_names() -> None:
    many = next(probe for probe in fields.TOOL_CALL_VARIANTS if "40 tools" in probe.name)
    names = [tool["function"]["name"] for tool in many.body["tools"]]
    assert len(set(names)) == len(names) == fields.MANY_TOOLS
    assert fields.TOOL_NAME in names


@pytest.mark.parametrize(
    ("name", "words", "cause"),
    [
        ("llama_cpp", "Value is not callable: null at row 62, column 114", "--chat-template-file"),
        ("llama_cpp", "tools param requires --jinja flag", "--no-jinja"),
        ("vllm", "conversation roles must alternate", "--chat-template"),
        (
            "vllm",
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "--enable-auto-tool-choice",
        ),
    ],
)
def test_a_flag_is_blamed_only_if_the_error_text_supports_it(name: str, words: str, cause: str) -> None:
    flags = engine.get_engine(name).probe_flags
    assert cause in flags.cause("tools refused", words)
    assert "--no-jinja" not in flags.cause("tools refused", "Value is not callable: null at row 62, column 114")


def test_a_streamed_answer_is_assembled_like_a_complete_one() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Hm"},
        {"reasoning": "."},
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}, {"index": 10**9}, 7]},
    ]
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, {"choices": []}, None]
    put_together = Reply(200, "", openai_api.assemble_stream(chunks))
    assert put_together.thinking == "Hm."
    assert fields.TOOL_CALL_PROBE.evaluate(put_together).verdict == "proved"
    assert put_together.choice["finish_reason"] == "tool_calls"

"""Verdicts on answers to probes; those of random weights were recorded from vLLM 0.32.0 on a CPU."""

from typing import Any

import pytest

from sparkwright.engines import engine, openai_api
from sparkwright.engines.probes import content, fields, table
from sparkwright.engines.probes.probe import Probe, Reply

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
#: an answer of random weights
LOOP = "icen Conicen+asedicen+icen+icen\n    icen\n    \n     them\n"


def build_reply(reason: str = "stop", **message: Any) -> Reply:
    choice = {"message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
    return Reply(200, "", {"choices": [choice]})


def find_variant(probe: Probe, name: str) -> Probe:
    """Return the only variant of a probe whose name has this end."""
    (variant,) = (variant for variant in table.variants(probe) if variant.name.endswith(name))
    return variant


def build_call(arguments: Any, name: str = "get_weather") -> Reply:
    return build_reply(
        "tool_calls", tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}}]
    )


@pytest.mark.parametrize(
    ("probe", "answer", "verdict", "fault"),
    [
        ("tool_call", build_reply("tool_calls", tool_calls=[CALL]), "proved", None),
        ("tool_call", build_call("{not json"), "disproved", "tool call with bad arguments"),
        ("tool_call", build_call("{}"), "disproved", "tool call with bad arguments"),
        ("tool_call", build_call('{"city": "Paris"}', "get_time"), "disproved", "tool call with bad arguments"),
        ("tool_call", build_reply(content='<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'), "disproved", "tool call as text"),
        ("tool_call", build_reply(content='[TOOL_CALLS]get_weather{"city": "Paris"}'), "disproved", "tool call as text"),
        ("tool_call", build_reply(content='get_weather(city="Paris")'), "disproved", "tool call as text"),
        ("tool_call", build_reply(reasoning="<function=get_weather>"), "disproved", "tool call in the thinking"),
        ("tool_call", build_reply(), "disproved", "content null"),
        ("tool_call", build_reply(content="It is sunny. I would use get_weather."), "disproved", "no tool call"),
        ("tool_call", build_reply("length", content=LOOP), "inconclusive", None),
        ("tool_call", build_reply("length", content='<tool_call>{"name": "get_weather", "arguments": false}'), "inconclusive", None),
        ("reasoning", build_reply(content="9.9", reasoning="9.9 is 9.90."), "proved", None),
        ("reasoning", build_reply(content="9.9", reasoning_content="9.9 is 9.90."), "proved", None),
        ("reasoning", build_reply(content="<think>so</think>9.9"), "disproved", "thinking in content"),
        ("reasoning", build_reply(content="so</think>9.9"), "disproved", "thinking in content"),
        ("reasoning", build_reply(content="<|channel>thought\nso<channel|>9.9"), "disproved", "thinking in content"),
        ("reasoning", build_reply(content="so<channel|>9.9"), "disproved", "thinking in content"),
        ("reasoning", build_reply(content="so</mm:think>9.9"), "disproved", "thinking in content"),
        ("reasoning", build_reply(content="so<|END_THINKING|>9.9"), "disproved", "thinking in content"),
        ("reasoning", build_reply(content="<|channel|>analysis so"), "disproved", "thinking in content"),
        ("reasoning", build_reply(reasoning="all of it"), "disproved", "content null"),
        ("reasoning", build_reply(content="9.9"), "disproved", "no thinking apart"),
        ("reasoning", build_reply("length", reasoning=LOOP), "inconclusive", None),
        ("json_schema", build_reply(content='{"city": "Oslo", "capital": true}'), "proved", None),
        ("json_schema", build_reply(content='```json\n{"city": "Oslo", "capital": true}\n```'), "disproved", "not the schema"),
        ("json_schema", build_reply(content='{"city": "Bergen", "capital": true}'), "disproved", "not the schema"),
        ("json_schema", build_reply(content='{"city": "Oslo", "capital": 1}'), "disproved", "not the schema"),
        ("json_schema", build_reply(), "disproved", "content null"),
        ("json_schema", build_reply("length", content="{\n    \n    \n"), "inconclusive", None),
        ("image", build_reply(content="Red."), "proved", None),
        ("image", build_reply(content="Blue"), "disproved", "picture not seen"),
        ("image", build_reply(content="</think>\n\nRed."), "disproved", "thinking in content"),
        ("tool_call", build_reply("tool_calls", content="</think>", tool_calls=[CALL]), "disproved", "thinking in content"),
        ({"language": "de"}, build_reply(content="</think>\n\nEine Woche hat sieben Tage, und der erste ist der Montag."), "disproved", "thinking in content"),
        ("image", build_reply(content="I am bored"), "disproved", "picture not seen"),
        ({"language": "de"}, build_reply(content="Eine Woche hat sieben Tage, und der erste ist der Montag."), "proved", None),
        ({"language": "de"}, build_reply(content="A week has seven days, and the first is Monday."), "disproved", "another language"),
        ({"language": "zh"}, build_reply(content="一周有七天，第一天是星期一。"), "proved", None),
        ({"language": "zh"}, build_reply(content="A week has seven days."), "disproved", "another language"),
        ({"embedding_dimension": 3}, Reply(200, "", {"data": [{"embedding": [0.1, 0.2, 0.3]}]}), "proved", None),
        ({"embedding_dimension": 4}, Reply(200, "", {"data": [{"embedding": [0.1, 0.2, 0.3]}]}), "disproved", "another dimension"),
    ],
)  # fmt: skip
def test_answers_are_judged_by_rules(probe: Any, answer: Reply, verdict: str, fault: str | None) -> None:
    (parsed,) = table.parse_probes([probe])
    outcome = parsed.evaluate(answer)
    assert (outcome.verdict, outcome.fault) == (verdict, fault)
    assert len(outcome.evidence) < 300


@pytest.mark.parametrize(
    "body", [None, [], {"choices": []}, {"choices": [3]}, {"choices": [{"message": {"content": 7}}]}, {"data": 4}]
)
def test_malformed_answers_are_disproved(body: Any) -> None:
    for probe in table.parse_probes([*table.PLAIN_PROBES, {"language": "fr"}, {"embedding_dimension": 3}]):
        assert probe.evaluate(Reply(200, "", body)).verdict == "disproved"


@pytest.mark.parametrize("name", [name for name in content.LANGUAGES if name != "en"])
def test_each_language_is_distinguished_by_its_question(name: str) -> None:
    prompt = content.LANGUAGES[name].prompt
    assert content.is_in_language(name, prompt) and not content.is_in_language("en", prompt)


def test_every_engine_names_a_flag_for_every_fault() -> None:
    vllm, *others = (engine.get_engine(name).probe_flags.causes for name in ("vllm", "sglang", "llama_cpp"))
    assert [set(causes) for causes in others] == [set(vllm)] * 2
    assert all("--" in cause for cause in vllm.values())


def test_the_picture_is_a_complete_png() -> None:
    data = content.build_png(2, b"\x01\x02\x03")
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")  # the end of every PNG


@pytest.mark.parametrize(
    "probe",
    [
        *("tools", {}, 4, None, {"a": 1, "b": 2}),
        *({"language": "xx"}, {"embedding_dimension": 0}, {"embedding_dimension": True}),
    ],
)
def test_invalid_probes_are_refused(probe: Any) -> None:
    assert table.probe_error(probe)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (build_call('{"city":"Rome"}'), "proved"),
        (build_call('{"city":"Paris"}'), "disproved"),
        (build_call("{}"), "disproved"),
        (build_reply(content="It rains in Rome."), "disproved"),
    ],
)
def test_a_second_turn_is_judged_by_its_question(answer: Reply, verdict: str) -> None:
    assert find_variant(fields.TOOL_CALL_PROBE, "second turn").evaluate(answer).verdict == verdict


def test_a_call_despite_tool_choice_none_is_a_fault() -> None:
    probe = find_variant(fields.TOOL_CALL_PROBE, "tool_choice none")
    assert probe.evaluate(build_reply("tool_calls", tool_calls=[CALL])).fault == "tool choice ignored"
    assert probe.evaluate(build_reply(content="It is sunny in Paris.")).verdict == "proved"


@pytest.mark.parametrize(
    ("name", "answer", "verdict", "note"),
    [
        ("reasoning, not mentioned", build_reply(content="9.9", reasoning="9.9 is 9.90."), "proved", ""),
        ("reasoning, not mentioned", build_reply(reasoning="The answer is 9.9."), "disproved", ""),
        ("reasoning, not mentioned", build_reply(content="</think>\n9.9"), "disproved", ""),
        ("reasoning, off", build_reply(content="9.9"), "proved", ""),
        ("reasoning, off", build_reply("length", content="9.9 is larger since"), "proved", ""),
        ("reasoning, off", build_reply("length", reasoning=LOOP), "inconclusive", "thinks although"),
        ("reasoning, off", build_reply(content="9.9", reasoning="so"), "proved", "thinks although"),
        ("reasoning, off, streamed", build_reply(reasoning="9.9"), "disproved", "thinks although"),
        ("reasoning, off, with reasoning_effort", build_reply(content="9.9", reasoning="so"), "proved", "`reasoning_effort` turns thinking on"),
    ],
)  # fmt: skip
def test_an_answer_is_required_with_thinking_off_or_unset(name: str, answer: Reply, verdict: str, note: str) -> None:
    outcome = find_variant(fields.REASONING_PROBE, name).evaluate(answer)
    assert outcome.verdict == verdict
    assert note in outcome.note and bool(note) == bool(outcome.note)


def test_text_despite_tool_choice_required_is_a_note() -> None:
    probe = find_variant(fields.TOOL_CALL_PROBE, "required")
    assert probe.evaluate(build_call('{"city": "Paris"}')).note == ""
    outcome = probe.evaluate(build_reply(content="Hello!"))
    assert (outcome.verdict, outcome.note) == ("proved", "`tool_choice: required` is ignored")


def test_the_request_with_many_tools_has_distinct_names() -> None:
    probe = next(variant for variant in fields.TOOL_CALL_VARIANTS if "40 tools" in variant.name)
    names = [tool["function"]["name"] for tool in probe.body["tools"]]
    assert len(set(names)) == len(names) == fields.MANY_TOOLS
    assert fields.TOOL_NAME in names


@pytest.mark.parametrize(
    ("name", "error", "cause"),
    [
        ("llama_cpp", "Value is not callable: null at row 62, column 114", "--chat-template-file"),
        ("llama_cpp", "tools param requires --jinja flag", "--no-jinja"),
        ("vllm", "conversation roles must alternate", "--chat-template"),
        ("vllm", '"auto" tool choice requires --enable-auto-tool-choice and --tool', "--enable-auto-tool-choice"),
    ],
)
def test_a_flag_is_blamed_only_if_the_error_text_supports_it(name: str, error: str, cause: str) -> None:
    flags = engine.get_engine(name).probe_flags
    assert cause in flags.cause("tools refused", error)
    assert "--no-jinja" not in flags.cause("tools refused", "Value is not callable: null at row 62, column 114")


def test_a_streamed_answer_is_assembled_like_a_complete_one() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Hm"},
        {"reasoning": "."},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}, {"index": 10**9}, 7]},
    ]
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, {"choices": []}, None]
    assembled = Reply(200, "", openai_api.assemble_stream(chunks))
    assert assembled.thinking == "Hm."
    assert fields.TOOL_CALL_PROBE.evaluate(assembled).verdict == "proved"
    assert assembled.choice["finish_reason"] == "tool_calls"

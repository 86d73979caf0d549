"""The simulated vLLM answers in Anthropic's Messages API and OpenAI's Responses API like a real 0.32.0.

tests/data/vllm-0.32.0/apis/answers.json: requests to a real vLLM on a CPU with a reciting model
(tests/real_engine/reciting.py), and its answers. The names of requests to a server without parsers begin with `bare-`.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.sandbox.hub import QWEN35_CONFIG
from tests.sandbox.vllm.serve_help import HELP
from tests.sandbox.vllm.test_api import RunningServer

RECORDED = json.loads((HELP.parent / "apis/answers.json").read_text())
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3")
NAMES = ("--served-model-name", "m", "second")
#: the model of the real vLLM, which accepts no pictures
TEXT_ONLY = {**QWEN35_CONFIG, "architectures": ["Qwen3NextForCausalLM"]}
#: keys with arbitrary content: a tool's arguments, and their schema
FREE = ("input", "parameters")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, RunningServer]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        started = {
            bare: RunningServer(tmp_path_factory.mktemp("model"), TEXT_ONLY, *NAMES, *(() if bare else PARSERS))
            for bare in (False, True)
        }
        yield started
        for server in started.values():
            server.stop()


def shape(value: Any) -> Any:
    """Return a value with its texts and numbers replaced by the names of their types."""
    if isinstance(value, dict):
        return {key: "free" if key in FREE and field else shape(field) for key, field in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return value if isinstance(value, bool) or value is None else type(value).__name__


def parse_events(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream, with repeated kinds merged, because answers of the sandbox have fewer tokens."""
    rows = [block.split("\n") for block in text.split("\n\n") if block.strip()]
    parsed = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in rows]
    return [next(group) for _, group in itertools.groupby(parsed, lambda row: row[0])]


def item_types(body: Any) -> list[str]:
    return [item["type"] for item in body.get("content") or body.get("output") or ()]


def replace_question(body: Any) -> Any:
    """Return a recorded request with `hi` replaced by a question that the sandbox answers with a word or a call."""
    tools = isinstance(body, dict) and body.get("tools")
    text = json.dumps(body).replace('"sunny"', '"sunny. Call get_weather again."')
    return json.loads(text.replace('"hi"', '"Call get_weather."' if tools else '"What is the capital of France?"'))


@pytest.mark.parametrize("name", RECORDED)
def test_an_answer_has_the_recorded_structure(servers: dict[bool, RunningServer], name: str) -> None:
    real, server = RECORDED[name], servers[name.startswith("bare-")]
    method = "GET" if name.endswith(("-get", "get-off")) else "POST"
    status, data, headers = server.ask(method, real["path"], replace_question(real["body"]))
    assert (status, headers["content-type"]) == (real["status"], real["type"]), data
    if real["type"].startswith("text/event-stream"):
        ours, theirs = parse_events(data.decode()), parse_events(real["text"])
        assert [kind for kind, _ in ours] == [kind for kind, _ in theirs]
        for (_, value), (_, other) in zip(ours, theirs, strict=True):
            assert shape(value) == shape(other)
        return
    ours, theirs = json.loads(data), json.loads(real["text"])
    assert shape(ours) == shape(theirs)
    assert item_types(ours) == item_types(theirs)
    if status != 200:
        assert ours == theirs
    for key in ("stop_reason", "status"):
        assert ours.get(key) == theirs.get(key)


def test_count_tokens_agrees_with_the_usage_of_the_answer(servers: dict[bool, RunningServer]) -> None:
    body = {"model": "m", "system": "Be kind.", "messages": [{"role": "user", "content": "Say ok, and no more."}]}
    counted = servers[False].json("POST", "/v1/messages/count_tokens", body)[1]["input_tokens"]
    usage = servers[False].json("POST", "/v1/messages", {**body, "max_tokens": 1})[1]["usage"]
    assert counted == usage["input_tokens"] > 8


def test_the_client_libraries_parse_the_streams(servers: dict[bool, RunningServer]) -> None:
    # here, because each worker of pytest would import them for seconds, and one runs this test
    import anthropic
    import openai

    base = f"http://127.0.0.1:{servers[False].port}"
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    question: Any = [{"role": "user", "content": "What is the weather in Rome? Call get_weather."}]
    tools: Any = [{"name": "get_weather", "description": "", "input_schema": schema}]
    claude = anthropic.Anthropic(base_url=base, auth_token="unused", api_key=None, max_retries=0)
    with claude.messages.stream(model="m", max_tokens=256, messages=question, tools=tools) as stream:
        message = stream.get_final_message()
    call = message.content[-1]
    assert call.type == "tool_use" and call.input == {"city": "Rome"} and message.stop_reason == "tool_use"
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0)
    functions: Any = [{"type": "function", "name": "get_weather", "parameters": schema}]
    with client.responses.stream(model="m", input=question, tools=functions) as streaming:
        response = streaming.get_final_response()
    item = response.output[-1]
    assert item.type == "function_call" and json.loads(item.arguments) == {"city": "Rome"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_request_with_tools_gets_a_text_or_a_valid_call(servers: dict[bool, RunningServer], path: str) -> None:
    number = {"type": "object", "properties": {"seconds": {"type": "number"}}}
    chat = path.endswith("completions")
    function = {"name": "wait", "parameters": number}
    tool = {"type": "function", **({"function": function} if chat else function)}
    limit = {"max_tokens": 2048} if chat else {"max_output_tokens": 2048}

    def ask(text: str) -> dict[str, Any]:
        question = {"messages": [{"role": "user", "content": text}]} if chat else {"input": text}
        status, answer = servers[False].json("POST", path, {"model": "m", "tools": [tool], **question, **limit})
        assert status == 200, answer
        return dict(answer)

    text_answer, call_answer = ask("Say ok."), ask("Call wait.")
    usage = text_answer["usage"]
    assert 0 < usage.get("completion_tokens", usage.get("output_tokens")) < 512
    if chat:
        choice = text_answer["choices"][0]
        assert choice["finish_reason"] == "stop" and not choice["message"].get("tool_calls")
        arguments = call_answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    else:
        assert text_answer["status"] == "completed" and item_types(text_answer)[-1] == "message"
        arguments = call_answer["output"][-1]["arguments"]
    assert arguments == '{"seconds": 1}', "some agents accept only whole numbers of seconds"


@pytest.mark.parametrize("parameters", [{}, None, {"properties": {}}])
@pytest.mark.parametrize("bare", [True, False])
def test_a_tool_without_a_schema_is_called_without_arguments(
    servers: dict[bool, RunningServer], bare: bool, parameters: dict[str, Any] | None
) -> None:
    tool = {"type": "function", "name": "stop_all", "parameters": parameters}
    status, answer = servers[bare].json("POST", "/v1/responses", {"input": "Call stop_all.", "tools": [tool]})
    assert status == 200, answer
    item = answer["output"][-1]
    if bare:
        assert "<function=stop_all>\n</function>" in item["content"][0]["text"]
    else:
        assert (item["type"], item["arguments"]) == ("function_call", "{}")

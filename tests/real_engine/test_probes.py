"""The probes with a real vLLM and a model that recites good answers: a missing or wrong parser is named."""

from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG
from sparkwright.modules.proof.probes import Probes
from tests.modules.context import RecordingContext
from tests.real_engine import reciting
from tests.real_engine.engine import Engine, serve_arguments, serving, serving_ready
from tests.real_engine.releases import install

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]
TOOLS = {"enable-auto-tool-choice": True}
CALLED = ("proved", "called get_weather with 'Paris'", "")
THOUGHT = ("proved", "thinking in `reasoning`, the answer in the content", "")
JSON = ("proved", "the content is JSON that matches the schema", "")
NO_TOOLS = ("disproved", "refused with 400", "--enable-auto-tool-choice and --tool-call-parser are needed")
AS_TEXT = "the tool call came as text in the content: '<tool_call>"
WRONG_TOOLS = ("disproved", AS_TEXT, "--tool-call-parser is for another model")
WRONG_PARSER = "--reasoning-parser or --tool-call-parser is for another model"
#: the flags of a start; the verdict of each probe, a part of its evidence, and a part of the likely cause
CASES = {
    "right parsers": (
        {**TOOLS, "tool-call-parser": "hermes", "reasoning-parser": "qwen3"},
        {
            "tool_call": CALLED,
            "reasoning": THOUGHT,
            "json_schema": JSON,
            "messages": CALLED,
            "messages, thinking": ("proved", "thinking in `thinking`, the answer in the content", ""),
            "messages, count_tokens": ("proved", "like the answer's usage", ""),
            "responses": CALLED,
            "responses, not streamed": CALLED,
            "responses, thinking": THOUGHT,
        },
    ),
    "no parsers": (
        {},
        {
            "tool_call": NO_TOOLS,
            "messages": NO_TOOLS,
            "responses": WRONG_TOOLS,
            "reasoning": ("disproved", "the thinking is in the content: '<think>", "--reasoning-parser is missing"),
            "json_schema": JSON,
        },
    ),
    "wrong tool parser": ({**TOOLS, "tool-call-parser": "pythonic"}, {"tool_call": WRONG_TOOLS}),
    "wrong reasoning parser": (
        {**TOOLS, "tool-call-parser": "hermes", "reasoning-parser": "deepseek_r1"},
        {
            "tool_call": ("disproved", "the tool call is in the thinking: '<tool_call>", "the call counts as thinking"),
            "json_schema": ("disproved", "content is null instead of JSON", WRONG_PARSER),
        },
    ),
}


@pytest.fixture(scope="module")
def model(engine: Engine) -> Path:
    folder = engine.models / "reciting"
    install.run_quietly([engine.python, reciting.__file__, folder])
    return folder


@pytest.mark.parametrize(("parsers", "expected"), CASES.values(), ids=CASES)
def test_a_parser_that_is_missing_or_anothers_is_named(
    parsers: dict[str, object], expected: dict[str, tuple[str, str, str]], model: Path, engine: Engine, tmp_path: Path
) -> None:
    with serving_ready(engine, serve_arguments(model, parsers), tmp_path / "server.log") as server:
        args = Probes.Args(server.base_url, "m", probes=[name for name in expected if "," not in name], timeout_s=60)
        result = {check["check"]: check for check in Probes().run(args, RecordingContext(tmp_path)).data["checks"]}
    for probe, (verdict, evidence, cause) in expected.items():
        row = result[probe]
        assert row["verdict"] == verdict and evidence in row["evidence"] and cause in row["fix"], row


def test_a_start_that_fails_because_of_a_parser_names_it(model: Path, engine: Engine, tmp_path: Path) -> None:
    words = serve_arguments(model, {**TOOLS, "tool-call-parser": "llama3_json"})
    with serving(engine, words, tmp_path / "server.log") as server:
        assert not server.ready
    message = str(read_log((tmp_path / "server.log").read_bytes(), LOG).failure.value)
    assert message.startswith("--tool-call-parser llama3_json: the parser is for another model"), message

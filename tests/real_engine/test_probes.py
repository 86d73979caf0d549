"""The probes against a real vLLM, whose model recites what a good one says: a parser that is missing or another model's is named."""

from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm import flags
from sparkwright.engines.vllm.log import LOG
from sparkwright.modules.proof.probes import Probes
from tests.modules.context import RecordingContext
from tests.real_engine import reciting
from tests.real_engine.engine import Engine, serving
from tests.real_engine.releases import install

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]
TOOLS = {"enable-auto-tool-choice": True}
#: the parsers of a start; by probe its verdict, and what its evidence and its likely cause say
CASES = {
    "its own parsers": (
        {**TOOLS, "tool-call-parser": "hermes", "reasoning-parser": "qwen3"},
        {
            "tool_call": ("proved", "called get_weather with 'Paris'", ""),
            "reasoning": ("proved", "thinking in `reasoning`, the answer in the content", ""),
            "json_schema": ("proved", "the content is JSON that matches the schema", ""),
            "messages": ("proved", "called get_weather with 'Paris'", ""),
            "messages, thinking": ("proved", "thinking in `thinking`, the answer in the content", ""),
            "messages, count_tokens": ("proved", "like the answer's usage", ""),
            "responses": ("proved", "called get_weather with 'Paris'", ""),
            "responses, not streamed": ("proved", "called get_weather with 'Paris'", ""),
            "responses, thinking": ("proved", "thinking in `reasoning`, the answer in the content", ""),
        },
    ),
    "no parser": (
        {},
        {
            "tool_call": (
                "disproved",
                "refused with 400",
                "--enable-auto-tool-choice and --tool-call-parser are needed",
            ),
            "messages": (
                "disproved",
                "refused with 400",
                "--enable-auto-tool-choice and --tool-call-parser are needed",
            ),
            "responses": (
                "disproved",
                "the tool call came as text in the content: '<tool_call>",
                "--tool-call-parser is for another model",
            ),
            "reasoning": ("disproved", "the thinking is in the content: '<think>", "--reasoning-parser is missing"),
            "json_schema": ("proved", "the content is JSON that matches the schema", ""),
        },
    ),
    "another model's tool parser": (
        {**TOOLS, "tool-call-parser": "pythonic"},
        {
            "tool_call": (
                "disproved",
                "the tool call came as text in the content: '<tool_call>",
                "--tool-call-parser is for another model",
            )
        },
    ),
    "another model's reasoning parser": (
        {**TOOLS, "tool-call-parser": "hermes", "reasoning-parser": "deepseek_r1"},
        {
            "tool_call": ("disproved", "the tool call is in the thinking: '<tool_call>", "the call counts as thinking"),
            "json_schema": (
                "disproved",
                "content is null instead of JSON",
                "--reasoning-parser or --tool-call-parser is for another model",
            ),
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
    flag_values = {"served-model-name": "m", "max-model-len": 4096, "enforce-eager": True, **parsers}
    words = flags.command(str(model), flag_values)
    with serving(engine, words, tmp_path / "server.log") as server:
        assert server.ready, server.log.read_text()[-2000:]
        args = Probes.Args(server.base_url, "m", probes=[item for item in expected if "," not in item], timeout_s=60)
        result = {check["check"]: check for check in Probes().run(args, RecordingContext(tmp_path)).data["checks"]}
    for probe, (verdict, evidence, cause) in expected.items():
        row = result[probe]
        assert row["verdict"] == verdict and evidence in row["evidence"] and cause in row["fix"], row


def test_a_parser_whose_tokens_the_model_lacks_ends_the_start_by_name(
    model: Path, engine: Engine, tmp_path: Path
) -> None:
    flag_values = {
        "served-model-name": "m",
        "max-model-len": 4096,
        "enforce-eager": True,
        **TOOLS,
        "tool-call-parser": "llama3_json",
    }
    with serving(engine, flags.command(str(model), flag_values), tmp_path / "server.log") as server:
        assert not server.ready
    message = str(read_log((tmp_path / "server.log").read_bytes(), LOG).failure.value)
    assert message.startswith("--tool-call-parser llama3_json: the parser is for another model"), message

"""The probes against servers that answer as vLLM 0.32.0 does: all well, a parser of another model, none at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.probes import content
from sparkwright.engines.probes.probe import Reply
from sparkwright.errors import Exit
from sparkwright.host.containers import container_labels
from sparkwright.modules.proof import probes
from sparkwright.modules.proof.probes import Probes
from sparkwright.modules.proof.verdict import NOT_REQUESTED
from sparkwright.protocol.result import Result
from sparkwright.sandbox.hub import QWEN35_CONFIG
from tests.modules.context import RecordingContext
from tests.sandbox.vllm.test_api import NAME, RunningServer
from tests.sandbox.vllm.test_startup import LLAMA

ALL = ["tool_call", "reasoning", "json_schema", "image", {"language": "de"}]
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Any]:
    started: list[RunningServer] = []

    def start(config: dict[str, Any], *words: str) -> RunningServer:
        started.append(RunningServer(tmp_path, config, *words))
        return started[-1]

    yield start
    for item in started:
        item.stop()


def run_probes(server: RunningServer, home: Path, *requested: Any, **arguments: Any) -> Result:
    args = Probes.Args(base_url=f"http://127.0.0.1:{server.port}", model=NAME, probes=list(requested), **arguments)
    return Probes().run(args, RecordingContext(home))


def verdicts_and_fixes(result: Result) -> dict[str, tuple[str, str]]:
    return {check["check"]: (check["verdict"], check["fix"]) for check in result.data["checks"]}


def test_server_with_the_right_parsers_passes_all_probes(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(
        start_server(QWEN35_CONFIG, *TOOLS, "qwen3_coder", "--reasoning-parser", "qwen3"), tmp_path, *ALL
    )
    assert not result.failed, result.msg
    assert {verdict for verdict, _ in verdicts_and_fixes(result).values()} == {"proved"}
    assert result.data["thinking_field"] == "reasoning"


def test_tool_call_left_in_the_text_names_the_parser_flag(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, *TOOLS, "hermes"), tmp_path, "tool_call")
    assert result.failed
    assert "came as text in the content: '<tool_call>" in result.msg
    assert "--tool-call-parser" in result.fix


def test_tools_that_the_server_refuses_name_both_flags(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG), tmp_path, "tool_call")
    assert result.failed
    assert 'refused with 400: "auto" tool choice requires' in result.msg
    assert "--enable-auto-tool-choice" in result.fix


def test_thinking_in_the_content_names_the_parser_flag(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG), tmp_path, "reasoning")
    assert result.failed
    assert "the thinking is in the content" in result.msg
    assert "--reasoning-parser" in result.fix


def test_null_content_names_the_parser_flag(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG, "--reasoning-parser", "qwen3")
    server.fault = "content-null"
    result = run_probes(server, tmp_path, "reasoning", "json_schema")
    assert result.failed
    assert result.msg.endswith("(2 of 2 probes failed).")
    assert "content is null" in result.msg
    assert "--reasoning-parser" in result.fix


def test_image_for_a_text_model_is_refused(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(LLAMA), tmp_path, "image")
    assert result.failed
    assert "is not a multimodal model" in result.msg
    assert "--limit-mm-per-prompt" in result.fix


def test_missing_answer_is_inconclusive(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG)
    server.fault = "wedge"
    result = run_probes(server, tmp_path, "json_schema", timeout_s=0.3)
    assert (result.failed, result.exit, result.data["verdict"]) == (False, Exit.INCONCLUSIVE, "inconclusive")


def test_embedding_of_another_length_fails(start_server: Any, tmp_path: Path) -> None:
    server = start_server({**LLAMA, "hidden_size": 64}, "--runner", "pooling")
    assert not run_probes(server, tmp_path, {"embedding_dimension": 64}).failed
    result = run_probes(server, tmp_path, {"embedding_dimension": 1024})
    assert result.failed
    assert "64 numbers instead of 1024" in result.msg


def test_no_request_without_probes(tmp_path: Path) -> None:
    args = Probes.Args(base_url="http://127.0.0.1:1", model="m")
    assert Probes().run(args, RecordingContext(tmp_path)).data["verdict"] == NOT_REQUESTED


@pytest.mark.parametrize(
    ("fault", "check"),
    [("tool-stream", "tool_call, streamed"), ("many-tools", "tool_call, 40 tools, streamed")],
)
def test_tool_call_that_fails_only_in_streams_or_with_many_tools_is_found(
    start_server: Any, tmp_path: Path, fault: str, check: str
) -> None:
    server = start_server(QWEN35_CONFIG, *TOOLS, "qwen3_coder", "--reasoning-parser", "qwen3")
    server.fault = fault
    result = run_probes(server, tmp_path, "tool_call")
    assert result.failed
    assert verdicts_and_fixes(result)["tool_call"][0] == "proved"
    assert verdicts_and_fixes(result)[check][0] == "disproved"
    assert "came as text in the content" in result.msg


def test_messages_and_responses_apis_are_probed(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG, *TOOLS, "qwen3_coder", "--reasoning-parser", "qwen3")
    result = run_probes(server, tmp_path, "reasoning", "messages", "responses")
    assert not result.failed, result.msg
    assert {verdict for verdict, _ in verdicts_and_fixes(result).values()} == {"proved"}
    wanted = {
        f"{api}, {what}" for api in ("messages", "responses") for what in ("second turn", "not streamed", "thinking")
    }
    assert wanted | {"messages, count_tokens"} <= set(verdicts_and_fixes(result))
    assert result.data["thinking_field"] == "reasoning"


@pytest.mark.parametrize(
    ("api", "words", "evidence"),
    [
        ("messages", (), 'refused with 400: "auto" tool choice requires'),
        ("responses", (), "the tool call came as text in the content"),
        ("messages", (*TOOLS, "hermes"), "the tool call came as text in the content"),
    ],
)
def test_tool_call_that_fails_in_another_api_is_found(
    start_server: Any, tmp_path: Path, api: str, words: tuple[str, ...], evidence: str
) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, *words), tmp_path, api)
    assert result.failed and evidence in result.msg
    assert "--tool-call-parser" in result.fix


def test_thinking_in_the_text_of_a_message_names_the_parser(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG, *TOOLS, "qwen3_coder", "--reasoning-parser", "qwen3")
    server.fault = "think-text"
    result = run_probes(server, tmp_path, "messages", "reasoning")
    assert result.failed and verdicts_and_fixes(result)["messages"][0] == "proved"
    verdict, fix = verdicts_and_fixes(result)["messages, thinking"]
    assert verdict == "disproved" and "--reasoning-parser" in fix


def test_missing_api_names_the_release_that_has_it(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server({**LLAMA, "hidden_size": 64}, "--runner", "pooling")
    monkeypatch.setattr(container_labels, "engine_at", lambda context, url: engine.get_engine("vllm"))
    result = run_probes(server, tmp_path, "messages")
    assert result.failed and "no /v1/messages (404" in result.msg
    assert "vLLM supports /v1/messages since 0.11.2" in result.fix


def test_each_probe_is_named_once(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, *TOOLS, "qwen3_coder"), tmp_path, "tool_call", "json_schema")
    assert result.msg == "answers: tool_call, json_schema"
    assert {"tool_call, second turn", "tool_call, tool_choice none", "json_schema, streamed"} <= set(
        verdicts_and_fixes(result)
    )


def test_notes_about_prompts_do_not_fail(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, "--reasoning-parser", "qwen3"), tmp_path, "reasoning")
    assert not result.failed
    assert result.data["notes"] == ["it drops the thinking of earlier turns"]
    assert result.msg.endswith("reasoning; note: it drops the thinking of earlier turns")
    assert verdicts_and_fixes(result)["for its clients"][0] == "proved"
    assert {"reasoning, not mentioned", "reasoning, off, streamed"} <= set(verdicts_and_fixes(result))


@pytest.mark.parametrize(("status", "noted"), [(500, True), (503, True), (400, False), (422, False), (200, False)])
def test_unreachable_image_is_a_note_if_the_server_fails(status: int, noted: bool) -> None:
    (probe,) = (variant for variant in content.IMAGE_VARIANTS if variant.optional)
    outcome = probes._evaluate_reply(probe, Reply(status, "cannot connect" if status != 200 else "", {}), 5)
    assert (outcome.verdict, bool(outcome.note)) == ("proved", noted)

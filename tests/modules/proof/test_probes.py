"""The probes against servers that answer like vLLM 0.32.0, with the right parsers, the wrong ones and none."""

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

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser")
PARSERS = (*TOOLS, "qwen3_coder", "--reasoning-parser", "qwen3")
EMBEDDING_CONFIG = {**LLAMA, "hidden_size": 64}


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Any]:
    servers: list[RunningServer] = []

    def start(config: dict[str, Any], *flags: str, fault: str = "") -> RunningServer:
        servers.append(RunningServer(tmp_path, config, *flags))
        servers[-1].fault = fault
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def run_probes(server: RunningServer, home: Path, *probes: Any, **arguments: Any) -> Result:
    args = Probes.Args(base_url=f"http://127.0.0.1:{server.port}", model=NAME, probes=list(probes), **arguments)
    return Probes().run(args, RecordingContext(home))


def get_verdicts(result: Result) -> dict[str, str]:
    return {check["check"]: check["verdict"] for check in result.data["checks"]}


def test_server_with_the_right_parsers_passes_all_probes(start_server: Any, tmp_path: Path) -> None:
    probes = ["tool_call", "reasoning", "json_schema", "image", {"language": "de"}]
    result = run_probes(start_server(QWEN35_CONFIG, *PARSERS), tmp_path, *probes)
    assert not result.failed, result.msg
    assert set(get_verdicts(result).values()) == {"proved"}
    assert result.data["thinking_field"] == "reasoning"


REFUSED_TOOLS = 'refused with 400: "auto" tool choice requires'
TOOLS_IN_CONTENT = "the tool call came as text in the content"


@pytest.mark.parametrize(
    ("server", "probe", "message", "fix"),
    [
        ((QWEN35_CONFIG, *TOOLS, "hermes"), "tool_call", f"{TOOLS_IN_CONTENT}: '<tool_call>", "--tool-call-parser"),
        ((QWEN35_CONFIG,), "tool_call", REFUSED_TOOLS, "--enable-auto-tool-choice"),
        ((QWEN35_CONFIG,), "reasoning", "the thinking is in the content", "--reasoning-parser"),
        ((LLAMA,), "image", "is not a multimodal model", "--limit-mm-per-prompt"),
        ((QWEN35_CONFIG,), "messages", REFUSED_TOOLS, "--tool-call-parser"),
        ((QWEN35_CONFIG,), "responses", TOOLS_IN_CONTENT, "--tool-call-parser"),
        ((QWEN35_CONFIG, *TOOLS, "hermes"), "messages", TOOLS_IN_CONTENT, "--tool-call-parser"),
    ],
    ids=[
        "wrong tool parser", "tools disabled", "no reasoning parser", "text model", "messages: tools disabled",
        "responses: tools disabled", "messages: wrong tool parser",
    ],
)  # fmt: skip
def test_failed_probe_names_the_cause_and_the_flag(
    start_server: Any, tmp_path: Path, server: tuple[Any, ...], probe: str, message: str, fix: str
) -> None:
    result = run_probes(start_server(*server), tmp_path, probe)
    assert result.failed
    assert message in result.msg
    assert fix in result.fix


def test_null_content_names_the_parser_flag(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG, "--reasoning-parser", "qwen3", fault="content-null")
    result = run_probes(server, tmp_path, "reasoning", "json_schema")
    assert result.failed
    assert result.msg.endswith("(2 of 2 probes failed).")
    assert "content is null" in result.msg
    assert "--reasoning-parser" in result.fix


def test_missing_answer_is_inconclusive(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, fault="wedge"), tmp_path, "json_schema", timeout_s=0.3)
    assert (result.failed, result.exit, result.data["verdict"]) == (False, Exit.INCONCLUSIVE, "inconclusive")


def test_embedding_of_another_length_fails(start_server: Any, tmp_path: Path) -> None:
    server = start_server(EMBEDDING_CONFIG, "--runner", "pooling")
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
    result = run_probes(start_server(QWEN35_CONFIG, *PARSERS, fault=fault), tmp_path, "tool_call")
    assert result.failed
    assert (get_verdicts(result)["tool_call"], get_verdicts(result)[check]) == ("proved", "disproved")
    assert TOOLS_IN_CONTENT in result.msg


def test_messages_and_responses_apis_are_probed(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG, *PARSERS)
    result = run_probes(server, tmp_path, "reasoning", "messages", "responses")
    assert not result.failed, result.msg
    assert set(get_verdicts(result).values()) == {"proved"}
    variants = ("second turn", "not streamed", "thinking")
    checks = {f"{api}, {variant}" for api in ("messages", "responses") for variant in variants}
    assert checks | {"messages, count_tokens"} <= set(get_verdicts(result))
    assert result.data["thinking_field"] == "reasoning"


def test_thinking_in_the_text_of_a_message_names_the_parser(start_server: Any, tmp_path: Path) -> None:
    server = start_server(QWEN35_CONFIG, *PARSERS, fault="think-text")
    result = run_probes(server, tmp_path, "messages", "reasoning")
    checks = {check["check"]: check for check in result.data["checks"]}
    assert result.failed and checks["messages"]["verdict"] == "proved"
    assert checks["messages, thinking"]["verdict"] == "disproved"
    assert "--reasoning-parser" in checks["messages, thinking"]["fix"]


def test_missing_api_names_its_release(start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server(EMBEDDING_CONFIG, "--runner", "pooling")
    monkeypatch.setattr(container_labels, "engine_at", lambda context, url: engine.get_engine("vllm"))
    result = run_probes(server, tmp_path, "messages")
    assert result.failed and "no /v1/messages (404" in result.msg
    assert "vLLM supports /v1/messages since 0.11.2" in result.fix


def test_each_probe_is_named_once(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, *TOOLS, "qwen3_coder"), tmp_path, "tool_call", "json_schema")
    assert result.msg == "passed: tool_call, json_schema"
    checks = {"tool_call, second turn", "tool_call, tool_choice none", "json_schema, streamed"}
    assert checks <= set(get_verdicts(result))


def test_notes_about_prompts_do_not_fail(start_server: Any, tmp_path: Path) -> None:
    result = run_probes(start_server(QWEN35_CONFIG, "--reasoning-parser", "qwen3"), tmp_path, "reasoning")
    assert not result.failed
    assert result.data["notes"] == ["it drops the thinking of earlier turns"]
    assert result.msg.endswith("reasoning; note: it drops the thinking of earlier turns")
    assert get_verdicts(result)["notes for clients"] == "proved"
    assert {"reasoning, not mentioned", "reasoning, off, streamed"} <= set(get_verdicts(result))


@pytest.mark.parametrize(("status", "has_note"), [(500, True), (503, True), (400, False), (422, False), (200, False)])
def test_unreachable_image_is_a_note_if_the_server_fails(status: int, has_note: bool) -> None:
    (probe,) = (variant for variant in content.IMAGE_VARIANTS if variant.optional)
    outcome = probes._evaluate_reply(probe, Reply(status, "cannot connect" if status != 200 else "", {}), 5)
    assert (outcome.verdict, bool(outcome.note)) == ("proved", has_note)

"""The key and priority in a server's command, the token counts in its answers, and the paths that a gateway routes."""

import re
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import api_paths, openai_api
from sparkwright.engines.llama_cpp.http import PATHS as LLAMA
from sparkwright.engines.openai import description
from sparkwright.engines.openai.http import described_http
from sparkwright.engines.sglang.http import PATHS as SGLANG
from sparkwright.engines.vllm.http import HTTP
from sparkwright.engines.vllm.http import PATHS as VLLM


@pytest.mark.parametrize(
    ("command", "env", "key"),
    [
        ([], [], ""),
        (["/model", "--api-key", "k1"], [], "k1"),
        (["--api-key=k1", "--port", "8000"], [], "k1"),
        (["--api_key", "k1"], ["VLLM_API_KEY=k2"], "k1"),
        (["/model"], ["PATH=/bin", "VLLM_API_KEY=k=2"], "k=2"),
        (["--api-key"], [], ""),
    ],
)
def test_the_key_is_read_from_the_command_or_environment(command: list[str], env: list[str], key: str) -> None:
    assert HTTP.api_key(command, env) == key


@pytest.mark.parametrize(
    ("command", "priority"),
    [([], False), (["--scheduling-policy", "fcfs"], False), (["--scheduling-policy=priority"], True)],
)
def test_priority_is_sent_only_to_engines_that_schedule_by_it(command: list[str], priority: bool) -> None:
    body = openai_api.build_request(HTTP, "m", "hello", 1, priority=HTTP.lowest_priority(command))
    assert ("priority" in body) == priority


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}, 1),  # half a character
        ({"choices": [{"message": {"content": "ok"}}]}, 1),
        ({"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}}, 0),
        ({"error": {"message": "no"}}, 0),
        (None, 0),
        ([], 0),
    ],
)
def test_tokens_are_counted_with_and_without_text(answer: Any, tokens: int) -> None:
    assert openai_api.count_tokens(answer) == tokens


@pytest.mark.parametrize(("context", "answer"), [(None, None), (2, 1), (4096, 2048), (131072, 8192)])
def test_prompt_and_answer_share_the_context(context: int | None, answer: int | None) -> None:
    assert openai_api.max_answer_tokens(context) == answer


LOG = Path(__file__).parent.parent / "data/vllm-0.32.0/llama-eager/server.log"
#: listed by vLLM only for a pooling model (0.32.0, `--runner pooling`)
POOLING_PATHS = {
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
}
#: parts of paths that change or stop a server, or read data of its operator
OPERATOR_PATHS = re.compile(r"lora|sleep|wake|profile|cache|weights|abort|scale|slots|props|metrics|load|stop|pause")


def test_vllm_lists_every_path_that_is_not_for_pooling() -> None:
    paths = set(re.findall(r"Route: ([^,]+), Methods: [A-Z, ]*(?:POST|GET)", LOG.read_text()))
    routed = {
        served.path.replace(api_paths.RESPONSE_ID_PLACEHOLDER, "{response_id}")
        for served in VLLM
        if served.model_location != "form"
    }
    assert routed - POOLING_PATHS <= paths
    assert {api_paths.MESSAGES_PATH, api_paths.COUNT_TOKENS_PATH, api_paths.RESPONSES_PATH} <= paths


@pytest.mark.parametrize(
    "paths", [VLLM, SGLANG, LLAMA, api_paths.OPENAI_PATHS], ids=["vllm", "sglang", "llama_cpp", "openai"]
)
def test_only_client_paths_are_routed(paths: tuple[api_paths.ApiPath, ...]) -> None:
    assert [served.path for served in paths if OPERATOR_PATHS.search(served.path)] == []
    assert len({served.path for served in paths}) == len(paths)


def test_a_recipe_adds_paths() -> None:
    added = ["/v1/audio/speech", {"path": "/v1/audio/transcriptions", "model": "form"}]
    section = {"served_name": "m", "paths": added}
    assert not list(description.find_mistakes(section))
    paths = described_http(description.render_label(section)).paths
    added_paths = [(served.path, served.model_location) for served in paths[-2:]]
    assert added_paths == [("/v1/audio/speech", "json"), ("/v1/audio/transcriptions", "form")]
    assert api_paths.OPENAI_PATHS[0] in paths


@pytest.mark.parametrize(
    "added", ["/v1/models", "/health", "v1/x", "/a b", 3, {"model": "form"}, {"path": "/x", "model": "url"}]
)
def test_invalid_paths_are_refused(added: object) -> None:
    assert list(description.find_mistakes({"served_name": "m", "paths": [added]}))

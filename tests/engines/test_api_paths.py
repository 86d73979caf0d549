"""Paths that a gateway routes, against the routes that real servers list at their start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkwright.engines import api_paths
from sparkwright.engines.llama_cpp.http import PATHS as LLAMA
from sparkwright.engines.openai import description
from sparkwright.engines.openai.http import described_http
from sparkwright.engines.sglang.http import PATHS as SGLANG
from sparkwright.engines.vllm.http import PATHS as VLLM

LOG = Path(__file__).parent.parent / "data/vllm-0.32.0/llama-eager/server.log"
#: vLLM lists them where it serves a pooling model (0.32.0, `--runner pooling`)
OF_POOLING = {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/pooling", "/classify"}
#: that change or stop a server, or read what is not a client's
NO_CLIENTS = re.compile(r"lora|sleep|wake|profile|cache|weights|abort|scale|slots|props|metrics|load|stop|pause")


def test_a_generating_server_of_vllm_lists_every_path_that_is_not_for_pooling() -> None:
    listed = set(re.findall(r"Route: ([^,]+), Methods: [A-Z, ]*(?:POST|GET)", LOG.read_text()))
    named = {served.path.replace(api_paths.ID, "{response_id}") for served in VLLM if served.model != "form"}
    assert named - OF_POOLING <= listed
    assert {api_paths.MESSAGES, api_paths.COUNT_TOKENS, api_paths.RESPONSES} <= listed


@pytest.mark.parametrize(
    "paths", [VLLM, SGLANG, LLAMA, api_paths.OPENAI], ids=["vllm", "sglang", "llama_cpp", "openai"]
)
def test_no_path_is_routed_that_is_no_clients(paths: tuple[api_paths.ApiPath, ...]) -> None:
    assert [served.path for served in paths if NO_CLIENTS.search(served.path)] == []
    assert len({served.path for served in paths}) == len(paths)


def test_a_recipe_adds_paths_of_a_server_that_no_release_knows() -> None:
    added = ["/v1/audio/speech", {"path": "/v1/audio/transcriptions", "model": "form"}]
    section = {"served_name": "m", "paths": added}
    assert not list(description.mistakes(section))
    paths = described_http(description.written(section)).paths
    assert [(served.path, served.model) for served in paths[-2:]] == [
        ("/v1/audio/speech", "json"),
        ("/v1/audio/transcriptions", "form"),
    ]
    assert api_paths.OPENAI[0] in paths


@pytest.mark.parametrize(
    "added", ["/v1/models", "/health", "v1/x", "/a b", 3, {"model": "form"}, {"path": "/x", "model": "url"}]
)
def test_a_path_that_cannot_be_one_is_refused(added: object) -> None:
    assert list(description.mistakes({"served_name": "m", "paths": [added]}))

"""The proofs of embedding and reranking servers, with the real llama-server and random weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.engines import http as engine_http
from sparkwright.engines import tasks
from sparkwright.engines.http import Http
from sparkwright.engines.llama_cpp.http import HTTP
from sparkwright.measure import http_probe, server_counters
from sparkwright.modules.proof.liveness import VerifyHealth
from tests.modules.context import RecordingContext
from tests.real_llama import server as servers

EMBED, RERANK = replace(HTTP, task="embed"), replace(HTTP, task="rerank")
SMALL = ("-c", "1024", "-np", "2", "-a", "tiny", "--metrics")


def request_tokens(server: servers.Server, http: Http) -> http_probe.Response:
    return http_probe.request_tokens(http_probe.Target(http, server.base_url, "tiny", timeout_s=20))


def test_an_embedding_is_proved_and_counted_as_work(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, *SMALL, "--embedding", "--pooling", "mean") as server:
        before = server_counters.read_counters(http_probe.Target(EMBED, server.base_url))[0]
        answer = request_tokens(server, EMBED)
        assert tasks.PROOFS["embed"].evaluate(answer.json()).content == "a vector of 128 numbers"
        assert http_probe.describe_missing_part(EMBED, answer.json()) == ""
        after = server_counters.read_counters(http_probe.Target(EMBED, server.base_url))[0]
        assert after[engine_http.HEARTBEAT] > before[engine_http.HEARTBEAT]
        args = VerifyHealth.Args(base_url=server.base_url, model="tiny", timeout_s=20)
        result = VerifyHealth().check_server(args, RecordingContext(tmp_path / "host"), EMBED)
        assert (result.failed, result.data["verdict"]) == (False, "ready")
        assert result.msg.startswith("answers: a vector of 128 numbers in ")


def test_each_text_gets_a_score(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, *SMALL, "--reranking") as server:
        answer = request_tokens(server, RERANK)
        assert tasks.PROOFS["rerank"].evaluate(answer.json()).content, answer.body
        assert http_probe.describe_missing_part(RERANK, answer.json()) == ""


@pytest.mark.parametrize(
    ("http", "flag", "status"), [(EMBED, "", 501), (RERANK, "--embedding", 501), (EMBED, "--embedding", 400)]
)
def test_a_missing_flag_is_reported(tiny: Path, tmp_path: Path, http: Http, flag: str, status: int) -> None:
    """The tiny model defines no pooling; --embedding alone does not set it, and OpenAI's API requires it."""
    with servers.serving(tmp_path, tiny, *SMALL, *flag.split()) as server:
        answer = request_tokens(server, http)
        assert answer.status == status and answer.failure

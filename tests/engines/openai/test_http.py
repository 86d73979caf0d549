"""Checks of a server with unusual paths and metrics."""

from pathlib import Path

import pytest

from sparkwright.engines import http as engine_http
from sparkwright.measure import http_probe, server_counters
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.engines.openai.pretend import DESCRIBED, FakeServer, serving
from tests.modules.context import RecordingContext

HTTP = DESCRIBED.http


def check_health(tmp_path: Path, server: FakeServer, key: str = "") -> Result:
    context = RecordingContext(tmp_path, secrets={"VLLM_API_KEY": Secret(key)} if key else {})
    return VerifyHealth().check_server(VerifyHealth.Args(base_url=server.url, model="m", timeout_s=2), context, HTTP)


@pytest.mark.parametrize("strict", [False, True])
def test_a_server_is_queried_at_its_described_paths(tmp_path: Path, strict: bool) -> None:
    with serving(FakeServer(strict=strict)) as server:
        result = check_health(tmp_path, server)
    assert (result.failed, result.data["verdict"], result.data["version"]) == (False, "ready", "2.1.0"), result.msg
    assert {*server.requests} == {"/v1/health/ready", "/openai/models", "/v1/version", "/v1/chat/completions"}


@pytest.mark.parametrize(("status", "verdict"), [(502, "loading"), (503, "loading"), (500, "dying")])
def test_only_described_statuses_mean_loading(tmp_path: Path, status: int, verdict: str) -> None:
    with serving(FakeServer(status)) as server:
        result = check_health(tmp_path, server)
    assert (result.failed, result.data["verdict"]) == (True, verdict)
    assert result.msg.startswith(f"/v1/health/ready answers {status}")


def test_a_key_is_required_and_used(tmp_path: Path) -> None:
    with serving(FakeServer(key="0123456789abcdef")) as server:
        assert check_health(tmp_path, server, "0123456789abcdef").data["verdict"] == "ready"
        assert check_health(tmp_path, server).failed


def test_counters_are_read_by_role() -> None:
    with serving(FakeServer(steps=40, done=3, running=2)) as server:
        counters, cache = server_counters.read_counters(http_probe.Target(HTTP, server.url))
    roles = (engine_http.HEARTBEAT, engine_http.GENERATED, engine_http.RUNNING, engine_http.WAITING)
    assert (counters, cache) == (dict(zip(roles, (40, 3, 2, 0), strict=True)), {})


def test_a_version_path_that_is_not_described_is_not_queried() -> None:
    with serving(FakeServer()) as server:
        plain = DESCRIBED.with_section({"served_name": "m"}).http
        assert http_probe.query_version(http_probe.Target(plain, server.url)) is None
        assert server_counters.read_counters(http_probe.Target(plain, server.url)) == ({}, {})
    assert server.requests == []

"""Requests for a sleeping model, which a real HAProxy records for the model's host."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import operations, wake
from sparkwright.host.gateway import server_operations
from sparkwright.host.gateway.server_operations import GatewayError
from tests.gateway.loopback import HOST_KEYS, KEY, Answer, RunningGateway, build_gateway, build_model, run_gateway
from tests.gateway.servers import CHAT, StreamServer, needs_haproxy

pytestmark = needs_haproxy
BODY = {"model": "org/qwen", "messages": []}
URL = operations.operation_url(wake.ASLEEP_OPERATION, "org::qwen", "one")


@pytest.fixture
def server(server: StreamServer) -> StreamServer:
    server.healthy = False
    return server


@contextlib.contextmanager
def wakeable_gateway(folder: Path, server: StreamServer, **changes: Any) -> Iterator[RunningGateway]:
    """Run a gateway with two models that are down: a request may wake the first one only."""
    sleeping = build_model("org/qwen", server)
    sleeping = replace(sleeping, upstreams=tuple(replace(item, wakes=True) for item in sleeping.upstreams))
    other = replace(build_model("other", server), on_demand=True)
    with run_gateway(folder, build_gateway(sleeping, other, **changes)) as lab:
        lab.up()
        yield lab


def report_wake_time(lab: RunningGateway, seconds: int) -> float | None:
    """Report the model asleep. Return how long ago a request asked for it, in seconds."""
    endpoint, key = lab.endpoint(), HOST_KEYS["one"]
    (sleeping,) = [row for row in server_operations.list_servers(endpoint, key) if row.backend == "org::qwen"]
    return server_operations.report_asleep(endpoint, key, sleeping, seconds)


def error_of(answer: Answer) -> tuple[int, str, str]:
    return *answer.error, answer.headers.get("retry-after", "")


def test_a_request_for_a_sleeping_model_is_recorded_and_gets_the_measured_start_time(
    tmp_path: Path, server: StreamServer
) -> None:
    with wakeable_gateway(tmp_path, server) as lab:
        assert error_of(lab.chat(BODY)) == (503, "model_not_up", "5"), "the host has not reported yet"
        assert report_wake_time(lab, 240) is None, "a request before the first report wakes nothing"
        refused = lab.chat(BODY)
        assert error_of(refused) == (503, "model_asleep", "240")
        assert refused.json["error"]["message"].endswith("can be awake in 240 s; try again then.")
        age_s = report_wake_time(lab, 0)
        assert age_s is not None and age_s < 20
        unknown = lab.chat(BODY)
        assert error_of(unknown) == (503, "model_asleep", str(wake.DEFAULT_RETRY_S))
        assert "240" not in unknown.body.decode()
        assert lab.ask("GET", "/v1/models").json["data"] == []
        assert error_of(lab.chat({**BODY, "model": "other"})) == (503, "model_not_up", "5")


def test_only_a_valid_request_wakes_a_model(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server) as lab:
        report_wake_time(lab, 240)
        assert lab.chat(BODY, key="another-key-another").status == 401
        assert lab.chat({"model": "org/qwen-2"}).status == 404
        assert lab.ask("GET", CHAT).status == 405
        assert lab.ask("POST", "/sleep", BODY).status == 404
        assert report_wake_time(lab, 240) is None


@pytest.mark.parametrize(
    ("key", "seconds", "status"),
    [
        pytest.param(HOST_KEYS["two"], "240", 403, id="another host"),
        pytest.param(KEY, "240", 401, id="client"),
        pytest.param(HOST_KEYS["one"], "240;x", 200, id="invalid number"),
        pytest.param(HOST_KEYS["one"], "-1", 200, id="negative number"),
    ],
)
def test_an_invalid_report_is_ignored(
    tmp_path: Path, server: StreamServer, key: str, seconds: str, status: int
) -> None:
    with wakeable_gateway(tmp_path, server) as lab:
        assert lab.control("PUT", URL, key=key, headers={wake.SECONDS_HEADER: seconds}).status == status
        assert error_of(lab.chat(BODY)) == (503, "model_not_up", "5")


def test_a_report_about_a_model_that_requests_may_not_wake_is_refused(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server) as lab:
        url = operations.operation_url(wake.ASLEEP_OPERATION, "other", "one")
        assert lab.control("PUT", url, key=HOST_KEYS["one"]).status == 403


def test_a_request_waits_for_a_model_that_can_start_in_time(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server, waits=True, queue_s=10) as lab, ThreadPoolExecutor(1) as pool:
        assert report_wake_time(lab, 11) is None
        assert error_of(lab.chat(BODY)) == (503, "model_asleep", "11"), "the start takes longer than a request may wait"
        report_wake_time(lab, 9)
        answer = pool.submit(lab.chat, BODY)
        while (age_s := report_wake_time(lab, 9)) is None:
            pass
        assert age_s <= 10
        server.healthy = True
        assert answer.result().json["from"] == "one"
        lab.up("org/qwen", "other")
        assert lab.chat(BODY).status == 200, "a report that the model is asleep outweighs that it is up"


def test_a_request_that_waited_too_long_gets_the_measured_start_time(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server, waits=True, queue_s=1) as lab:
        report_wake_time(lab, 1)
        assert error_of(lab.chat(BODY)) == (503, "overloaded", "1")


def test_a_request_that_waited_for_a_failed_wake_gets_the_time_of_the_next_attempt(
    tmp_path: Path, server: StreamServer
) -> None:
    with wakeable_gateway(tmp_path, server, waits=True, queue_s=5) as lab, ThreadPoolExecutor(1) as pool:
        report_wake_time(lab, 2)
        answer = pool.submit(lab.chat, BODY)
        while report_wake_time(lab, 2) is None:
            pass
        report_wake_time(lab, 1802)
        assert error_of(answer.result()) == (503, "overloaded", "1802")


def test_a_gateway_without_wakeable_models_refuses_reports(tmp_path: Path, server: StreamServer) -> None:
    with (
        run_gateway(tmp_path, build_gateway(build_model("org/qwen", server))) as lab,
        pytest.raises(GatewayError, match="answered with status 403"),
    ):
        report_wake_time(lab, 240)

"""Requests for a sleeping model, noted by Debian's real HAProxy and read by the model's host."""

import contextlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import operations, wake
from sparkwright.host.gateway import server_operations
from sparkwright.host.gateway.server_operations import GatewayError
from tests.gateway.loopback import (
    HOST_KEYS,
    KEY,
    Answer,
    RunningGateway,
    StreamServer,
    build_gateway,
    build_model,
    run_gateway,
)

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BODY = {"model": "org/qwen", "messages": []}
URL = operations.operation_url(wake.ASLEEP, "org::qwen", "one")


@pytest.fixture
def server() -> Iterator[StreamServer]:
    servers = StreamServer("one")
    servers.healthy = False
    yield servers
    servers.shutdown()


@contextlib.contextmanager
def wakeable_gateway(folder: Path, server: StreamServer, **changes: Any) -> Iterator[RunningGateway]:
    """A gateway in front of a model that a request may wake, beside one that none may; neither is up."""
    sleeps = build_model("org/qwen", server)
    sleeps = replace(sleeps, upstreams=tuple(replace(item, wakes=True) for item in sleeps.upstreams))
    with run_gateway(
        folder, build_gateway(sleeps, replace(build_model("other", server), on_demand=True), **changes)
    ) as gateway:
        gateway.up()
        yield gateway


def report_wake_time(lab: RunningGateway, seconds: int, *, key: str = HOST_KEYS["one"]) -> float | None:
    endpoint = server_operations.Gateway("lab", "127.0.0.1", lab.gateway.control_port, tls=False, server="one")
    (sleeper,) = [row for row in server_operations.list_servers(endpoint, key) if row.backend == "org::qwen"]
    return server_operations.report_asleep(endpoint, key, sleeper, seconds)


def error_of(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.json["error"]["code"], answer.headers.get("retry-after", "")


def test_a_request_for_a_sleeping_model_is_noted_and_told_the_measured_time(
    tmp_path: Path, server: StreamServer
) -> None:
    with wakeable_gateway(tmp_path, server) as running_gateway:
        assert error_of(running_gateway.chat(BODY)) == (503, "model_not_up", "5"), "its host has not reported"
        assert report_wake_time(running_gateway, 240) is None, "a request before the first report wakes nothing"
        refused = running_gateway.chat(BODY)
        assert error_of(refused) == (503, "model_asleep", "240")
        assert refused.json["error"]["message"].endswith("Try again in 240 s, estimated from its last start.")
        asked_s = report_wake_time(running_gateway, 0)
        assert asked_s is not None and asked_s < 20
        unknown = running_gateway.chat(BODY)
        assert (
            error_of(unknown) == (503, "model_asleep", str(wake.DEFAULT_RETRY_S)) and "240" not in unknown.body.decode()
        )
        assert running_gateway.ask("GET", "/v1/models").json["data"] == [], "a list of models wakes none"
        assert error_of(running_gateway.chat({**BODY, "model": "other"})) == (503, "model_not_up", "5")


def test_only_a_request_that_the_gateway_would_serve_wakes_a_model(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server) as running_gateway:
        report_wake_time(running_gateway, 240)
        assert running_gateway.chat(BODY, key="another-key-another").status == 401
        assert running_gateway.chat({"model": "org/qwen-2"}).status == 404
        assert running_gateway.ask("GET", "/v1/chat/completions").status == 405
        assert running_gateway.ask("POST", "/sleep", BODY).status == 404
        assert report_wake_time(running_gateway, 240) is None


@pytest.mark.parametrize(
    ("key", "seconds", "status"),
    [
        (HOST_KEYS["two"], "240", 403),
        (KEY, "240", 401),
        (HOST_KEYS["one"], "240;x", 200),
        (HOST_KEYS["one"], "-1", 200),
    ],
)
def test_a_report_of_another_host_or_of_no_number_counts_for_nothing(
    tmp_path: Path, server: StreamServer, key: str, seconds: str, status: int
) -> None:
    with wakeable_gateway(tmp_path, server) as running_gateway:
        assert running_gateway.control("PUT", URL, key=key, **{wake.SECONDS_HEADER: seconds}).status == status
        assert error_of(running_gateway.chat(BODY)) == (503, "model_not_up", "5")
        assert (
            running_gateway.control(
                "PUT", operations.operation_url(wake.ASLEEP, "other", "one"), key=HOST_KEYS["one"]
            ).status
            == 403
        )


def test_a_request_waits_for_its_model_if_it_can_be_awake_in_time(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server, waits=True, queue_s=10) as running_gateway, ThreadPoolExecutor(1) as pool:
        assert report_wake_time(running_gateway, 11) is None
        assert error_of(running_gateway.chat(BODY)) == (503, "model_asleep", "11"), "it would have waited in vain"
        report_wake_time(running_gateway, 9)
        answer = pool.submit(running_gateway.chat, BODY)
        while (asked_s := report_wake_time(running_gateway, 9)) is None:
            pass
        assert asked_s <= 10
        server.healthy = True
        assert answer.result().json["from"] == "one"
        running_gateway.up("org/qwen", "other")
        assert running_gateway.chat(BODY).status == 200, "its report is valid still, and it is up"


def test_a_request_that_waited_in_vain_is_told_the_measured_time_too(tmp_path: Path, server: StreamServer) -> None:
    with wakeable_gateway(tmp_path, server, waits=True, queue_s=1) as running_gateway:
        report_wake_time(running_gateway, 1)
        assert error_of(running_gateway.chat(BODY)) == (503, "overloaded", "1")


def test_a_gateway_that_wakes_nothing_says_so_to_the_host(tmp_path: Path, server: StreamServer) -> None:
    with (
        run_gateway(tmp_path, build_gateway(build_model("org/qwen", server))) as running_gateway,
        pytest.raises(GatewayError, match="answered with status 403"),
    ):
        report_wake_time(running_gateway, 240)

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
from tests.gateway.loopback import HOST_KEYS, KEY, Answer, Running, Server, gateway, model, running

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BODY = {"model": "org/qwen", "messages": []}
URL = operations.operation_url(wake.ASLEEP, "org::qwen", "one")


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server("one")
    found.healthy = False
    yield found
    found.shutdown()


@contextlib.contextmanager
def lab(folder: Path, server: Server, **changes: Any) -> Iterator[Running]:
    """A gateway in front of a model that a request may wake, beside one that none may; neither is up."""
    sleeps = model("org/qwen", server)
    sleeps = replace(sleeps, upstreams=tuple(replace(item, wakes=True) for item in sleeps.upstreams))
    with running(folder, gateway(sleeps, replace(model("other", server), on_demand=True), **changes)) as found:
        found.up()
        yield found


def report(found: Running, seconds: int, *, key: str = HOST_KEYS["one"]) -> float | None:
    at = server_operations.Gateway("lab", "127.0.0.1", found.gateway.control_port, tls=False, server="one")
    (sleeper,) = [row for row in server_operations.list_servers(at, key) if row.backend == "org::qwen"]
    return server_operations.report_asleep(at, key, sleeper, seconds)


def error(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.json["error"]["code"], answer.headers.get("retry-after", "")


def test_a_request_for_a_sleeping_model_is_noted_and_told_the_measured_time(tmp_path: Path, server: Server) -> None:
    with lab(tmp_path, server) as found:
        assert error(found.chat(BODY)) == (503, "model_not_up", "5"), "its host has not reported"
        assert report(found, 240) is None, "a request before the first report wakes nothing"
        refused = found.chat(BODY)
        assert error(refused) == (503, "model_asleep", "240") and "240 s" in refused.json["error"]["message"]
        asked_s = report(found, 0)
        assert asked_s is not None and asked_s < 20
        unknown = found.chat(BODY)
        assert error(unknown) == (503, "model_asleep", str(wake.DEFAULT_RETRY_S)) and "240" not in unknown.body.decode()
        assert found.ask("GET", "/v1/models").json["data"] == [], "a list of models wakes none"
        assert error(found.chat({**BODY, "model": "other"})) == (503, "model_not_up", "5")


def test_only_a_request_that_the_gateway_would_serve_wakes_a_model(tmp_path: Path, server: Server) -> None:
    with lab(tmp_path, server) as found:
        report(found, 240)
        assert found.chat(BODY, key="another-key-another").status == 401
        assert found.chat({"model": "org/qwen-2"}).status == 404
        assert found.ask("GET", "/v1/chat/completions").status == 405
        assert found.ask("POST", "/sleep", BODY).status == 404
        assert report(found, 240) is None


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
    tmp_path: Path, server: Server, key: str, seconds: str, status: int
) -> None:
    with lab(tmp_path, server) as found:
        assert found.control("PUT", URL, key=key, **{wake.SECONDS_HEADER: seconds}).status == status
        assert error(found.chat(BODY)) == (503, "model_not_up", "5")
        assert (
            found.control("PUT", operations.operation_url(wake.ASLEEP, "other", "one"), key=HOST_KEYS["one"]).status
            == 403
        )


def test_a_request_waits_for_its_model_if_it_can_be_awake_in_time(tmp_path: Path, server: Server) -> None:
    with lab(tmp_path, server, waits=True, queue_s=10) as found, ThreadPoolExecutor(1) as pool:
        assert report(found, 11) is None
        assert error(found.chat(BODY)) == (503, "model_asleep", "11"), "it would have waited in vain"
        report(found, 9)
        answer = pool.submit(found.chat, BODY)
        while (asked_s := report(found, 9)) is None:
            pass
        assert asked_s <= 10
        server.healthy = True
        assert answer.result().json["from"] == "one"
        found.up("org/qwen", "other")
        assert found.chat(BODY).status == 200, "its report is valid still, and it is up"


def test_a_request_that_waited_in_vain_is_told_the_measured_time_too(tmp_path: Path, server: Server) -> None:
    with lab(tmp_path, server, waits=True, queue_s=1) as found:
        report(found, 1)
        assert error(found.chat(BODY)) == (503, "overloaded", "1")


def test_a_gateway_that_wakes_nothing_says_so_to_the_host(tmp_path: Path, server: Server) -> None:
    with (
        running(tmp_path, gateway(model("org/qwen", server))) as found,
        pytest.raises(GatewayError, match="refused it"),
    ):
        report(found, 240)

"""Requests that wait in a real HAProxy until a server is up."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparkwright.gateway import statistics
from sparkwright.host.gateway import haproxy_sockets
from tests.gateway.loopback import RunningGateway, StreamServer, build_gateway, build_model, needs_haproxy, run_gateway
from tests.waiting import wait_until

pytestmark = needs_haproxy
BODY = {"model": "qwen", "messages": []}


def read_model_statistics(lab: RunningGateway) -> dict[str, Any]:
    return statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))[0]


def test_a_request_waits_for_its_server_and_counts_as_queued(tmp_path: Path, server: StreamServer) -> None:
    server.healthy = False
    with (
        run_gateway(tmp_path, build_gateway(build_model("qwen", server), waits=True)) as lab,
        ThreadPoolExecutor(1) as pool,
    ):
        lab.up()
        answer = pool.submit(lab.chat, BODY)
        wait_until(lambda: read_model_statistics(lab)["queued"] == 1)
        assert [item["host"] for item in read_model_statistics(lab)["servers"]] == ["one"]
        server.healthy = True
        assert answer.result().json["from"] == "one"
        lab.up("qwen")


def test_a_request_that_waited_too_long_gets_503_with_retry_after(tmp_path: Path, server: StreamServer) -> None:
    server.healthy = False
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server), waits=True, queue_s=1)) as lab:
        lab.up()
        answer = lab.chat(BODY)
    assert (*answer.error, answer.headers["retry-after"]) == (503, "overloaded", "5")
    assert not server.seen

"""A gateway whose requests wait for a server to be up, in Debian's real HAProxy."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import statistics
from sparkwright.host.gateway import haproxy_sockets
from tests.gateway.loopback import DEADLINE_S, RunningGateway, StreamServer, build_gateway, build_model, run_gateway

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BODY = {"model": "qwen", "messages": []}


@pytest.fixture
def server() -> Iterator[StreamServer]:
    servers = StreamServer("one")
    yield servers
    servers.shutdown()


def read_model_statistics(lab: RunningGateway) -> dict[str, Any]:
    return statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))[0]


def test_a_request_waits_for_its_server_and_is_told_as_queued(tmp_path: Path, server: StreamServer) -> None:
    server.healthy = False
    with (
        run_gateway(tmp_path, build_gateway(build_model("qwen", server), waits=True)) as lab,
        ThreadPoolExecutor(1) as pool,
    ):
        lab.up()
        answer = pool.submit(lab.chat, BODY)
        until_s = time.monotonic() + DEADLINE_S
        while read_model_statistics(lab)["queued"] != 1:
            assert time.monotonic() < until_s, read_model_statistics(lab)
        assert [item["host"] for item in read_model_statistics(lab)["servers"]] == ["one"], (
            "what stands for waiting is no server"
        )
        server.healthy = True
        assert answer.result().json["from"] == "one"
        lab.up("qwen")


def test_who_waited_long_enough_is_told_to_come_back(tmp_path: Path, server: StreamServer) -> None:
    server.healthy = False
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server), waits=True, queue_s=1)) as lab:
        lab.up()
        answer = lab.chat(BODY)
    assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "5" and not server.seen

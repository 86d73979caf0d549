"""A gateway whose requests wait for a server to be up, in Debian's real HAProxy."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import statistics
from sparkwright.host.gateway import admin
from tests.gateway.loopback import DEADLINE_S, Running, Server, gateway, model, running

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BODY = {"model": "qwen", "messages": []}


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server("one")
    yield found
    found.shutdown()


def shown(lab: Running) -> dict[str, Any]:
    return statistics.models(admin.rows(lab.folder))[0]


def test_a_request_waits_for_its_server_and_is_told_as_queued(tmp_path: Path, server: Server) -> None:
    server.healthy = False
    with running(tmp_path, gateway(model("qwen", server), waits=True)) as lab, ThreadPoolExecutor(1) as pool:
        lab.up()
        answer = pool.submit(lab.chat, BODY)
        until_s = time.monotonic() + DEADLINE_S
        while shown(lab)["queued"] != 1:
            assert time.monotonic() < until_s, shown(lab)
        assert [one["host"] for one in shown(lab)["servers"]] == ["one"], "what stands for waiting is no server"
        server.healthy = True
        assert answer.result().json["from"] == "one"
        lab.up("qwen")


def test_who_waited_long_enough_is_told_to_come_back(tmp_path: Path, server: Server) -> None:
    server.healthy = False
    with running(tmp_path, gateway(model("qwen", server), waits=True, queue_s=1)) as lab:
        lab.up()
        answer = lab.chat(BODY)
    assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "5" and not server.seen


class Dies(BaseHTTPRequestHandler):
    """A server that is up, and ends with each request."""

    asked = threading.Semaphore(0)

    def log_message(self, *words: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"max_tokens" in body:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"choices": [{"message": {"content": "x"}}]}')
        else:
            self.asked.release()


class Dying(ThreadingHTTPServer):
    name = "one"

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A check of HAProxy closes its connection as it likes."""


def test_a_request_that_a_server_dies_of_is_not_sent_again(tmp_path: Path) -> None:
    with Dying(("127.0.0.1", 0), Dies) as dying:
        threading.Thread(target=dying.serve_forever, args=(0.02,), daemon=True).start()
        with running(tmp_path, gateway(model("qwen", dying), waits=True)) as lab:  # type: ignore[arg-type]
            answer = lab.chat(BODY)
        dying.shutdown()
    assert (answer.status, answer.json["error"]["code"]) == (502, "server_gone")
    assert Dies.asked.acquire(timeout=0) and not Dies.asked.acquire(timeout=0), "asked once"

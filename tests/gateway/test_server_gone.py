"""Servers that fail on their requests, behind Debian's real HAProxy: which requests are retried, and which are not."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.loopback import Server, gateway, model, running

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BODY = {"model": "qwen", "messages": []}


class Dies(BaseHTTPRequestHandler):
    """A server that is up, and closes the connection of each request before it answers."""

    server: Dying

    def log_message(self, *words: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"max_tokens" in body:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"choices": [{"message": {"content": "x"}}]}')
        else:
            self.server.asked += 1


class Dying(ThreadingHTTPServer):
    name = "one"
    asked = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a check of HAProxy may close its connection at any time."""


@pytest.fixture
def dying() -> Iterator[Dying]:
    with Dying(("127.0.0.1", 0), Dies) as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


def test_a_request_whose_server_ends_before_it_answers_is_answered_by_another(tmp_path: Path, dying: Dying) -> None:
    server = Server("two")
    with running(tmp_path, gateway(model("qwen", dying, server))) as lab:  # type: ignore[arg-type]
        lab.up("qwen")
        answers = [lab.chat(BODY) for _ in range(4)]
    server.shutdown()
    assert {answer.json["from"] for answer in answers} == {"two"} and dying.asked


@pytest.mark.parametrize("waits", [False, True], ids=["refuse", "wait"])
def test_a_request_that_the_only_server_dies_of_is_not_sent_again(tmp_path: Path, dying: Dying, waits: bool) -> None:
    with running(tmp_path, gateway(model("qwen", dying), waits=waits)) as lab:  # type: ignore[arg-type]
        lab.up("qwen")
        answer = lab.chat(BODY)
    assert (answer.status, answer.json["error"]["code"]) == (502, "server_gone")
    assert dying.asked == 1

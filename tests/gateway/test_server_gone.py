"""Servers that fail on their requests, behind a real HAProxy: which requests are retried, and what a broken stream ends with."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.loopback import KEY, RunningGateway, StreamServer, build_gateway, build_model, run_gateway
from tests.gateway.newer_haproxy import FOLDER, PROGRAM

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BODY = {"model": "qwen", "messages": []}
CHAT = 'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"qwen","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "qwen",
    "output": [],
    "status": "in_progress",
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "qwen", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
#: the beginning of a stream, by path
FIRST_EVENTS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": 'data: {"id":"1","object":"text_completion","created":1,"model":"qwen","choices":[{"index":0,"text":"a"}]}\n\n',
    "/v1/responses": "event: response.created\ndata: "
    + json.dumps({"type": "response.created", "sequence_number": 0, "response": RESPONSE})
    + "\n\n",
    "/v1/messages": f"event: message_start\ndata: {json.dumps({'type': 'message_start', 'message': MESSAGE})}\n\n",
}


class _DyingHandler(BaseHTTPRequestHandler):
    """A server that is up, and closes the connection of each request before it answers, or in the middle of a stream."""

    protocol_version = "HTTP/1.1"
    server: DyingServer

    def log_message(self, *words: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.close_connection = True
        if body.get("max_tokens") == 1:
            content = b'{"choices": [{"message": {"content": "x"}}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.server.asked += 1
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            begin = FIRST_EVENTS[self.path].encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(begin), begin))
            self.wfile.flush()
            self.server.go_on.wait(20)


class DyingServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, name: str = "one") -> None:
        super().__init__(("127.0.0.1", 0), _DyingHandler)
        self.name, self.asked, self.go_on = name, 0, threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a check of HAProxy may close its connection at any time."""


@pytest.fixture
def dying() -> Iterator[DyingServer]:
    with DyingServer() as server:
        yield server
        server.shutdown()


@pytest.fixture(params=["this machine's", "newer"])
def adds_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run with each HAProxy. Return True for one that adds an error to a broken stream."""
    if request.param == "newer":
        if not PROGRAM.exists():
            pytest.skip("`python -m tests.gateway.newer_haproxy` makes a newer HAProxy")
        monkeypatch.setenv("PATH", f"{FOLDER}:{os.environ['PATH']}")
    version = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout.split()[2]
    return tuple(map(int, version.split(".")[:2])) >= (2, 8)


def test_a_request_whose_server_ends_before_it_answers_is_answered_by_another(
    tmp_path: Path, dying: DyingServer, adds_errors: bool
) -> None:
    server, third = StreamServer("two"), DyingServer("three")
    with run_gateway(tmp_path, build_gateway(build_model("qwen", dying, server, third))) as lab:  # type: ignore[arg-type]
        lab.up("qwen")
        answers = []
        for _ in range(12):
            lab.idle()  # a busy server comes last (leastconn): the two that fail would take turns until no retry is left
            answers.append(lab.chat(BODY))
    server.shutdown()
    third.shutdown()
    assert {answer.json["from"] for answer in answers} == {"two"} and dying.asked and third.asked


@pytest.mark.parametrize("waits", [False, True], ids=["refuse", "wait"])
def test_a_request_that_the_only_server_dies_of_is_not_sent_again(
    tmp_path: Path, dying: DyingServer, waits: bool
) -> None:
    with run_gateway(tmp_path, build_gateway(build_model("qwen", dying), waits=waits)) as lab:  # type: ignore[arg-type]
        lab.up("qwen")
        answer = lab.chat(BODY)
    assert (answer.status, answer.json["error"]["code"]) == (502, "server_gone")
    assert dying.asked == 1


def stream_chat(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="qwen", messages=[{"role": "user", "content": "x"}], stream=True)


def stream_completions(client: openai.OpenAI) -> Any:
    return client.completions.create(model="qwen", prompt="x", stream=True)


def stream_responses(client: openai.OpenAI) -> Any:
    return client.responses.create(model="qwen", input="x", stream=True)


def stream_messages(client: anthropic.Anthropic) -> Any:
    content: Any = [{"role": "user", "content": "x"}]
    return client.messages.create(model="qwen", messages=content, max_tokens=9, stream=True)


def build_client(lab: RunningGateway, kind: Any) -> Any:
    path = "" if kind is anthropic.Anthropic else "/v1"
    return kind(base_url=f"http://127.0.0.1:{lab.gateway.port}{path}", api_key=KEY, max_retries=0, timeout=20)


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (openai.OpenAI, stream_chat),
        (openai.OpenAI, stream_completions),
        (openai.OpenAI, stream_responses),
        (anthropic.Anthropic, stream_messages),
    ],
)
def test_clients_libraries_raise_an_error_for_a_stream_whose_server_is_gone(
    tmp_path: Path, dying: DyingServer, adds_errors: bool, kind: Any, ask: Callable[[Any], Any]
) -> None:
    """With a newer HAProxy the error of their API, and in any case one of the connection."""
    errors = (openai.APIError, anthropic.APIError) if adds_errors else (Exception,)
    with run_gateway(tmp_path, build_gateway(build_model("qwen", dying))) as lab:  # type: ignore[arg-type]
        lab.up("qwen")
        client = build_client(lab, kind)
        stream = iter(ask(client))
        assert next(stream)
        dying.go_on.set()
        with pytest.raises(errors) as raised:
            next(stream)
        client.close()
    assert not adds_errors or "so this answer is incomplete" in str(raised.value)


@pytest.mark.parametrize("how", ["ends", "is silent"])
def test_a_broken_stream_is_no_whole_answer_even_for_a_client_that_reads_no_errors(
    tmp_path: Path, dying: DyingServer, adds_errors: bool, how: str
) -> None:
    dying.go_on.set() if how == "ends" else None
    with run_gateway(tmp_path, build_gateway(build_model("qwen", dying), answer_s=2)) as lab:  # type: ignore[arg-type]
        lab.up("qwen")
        link, body = lab.connection(), json.dumps({**BODY, "stream": True})
        link.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
        with pytest.raises(http.client.IncompleteRead) as raised:
            link.getresponse().read()
    events = raised.value.partial.decode().split("\n\n")
    assert events[0] == CHAT.strip() and "[DONE]" not in events
    added = [json.loads(event.strip().removeprefix("data: "))["error"]["code"] for event in events[1:] if event.strip()]
    assert added == (["server_gone"] if adds_errors else [])

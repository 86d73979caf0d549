"""Servers that fail on requests, behind a real HAProxy: which requests are retried, and how a broken stream ends."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkwright.gateway import statistics
from sparkwright.host.gateway import haproxy_sockets
from tests.gateway.loopback import KEY, RunningGateway, build_model, serve_models
from tests.gateway.newer_haproxy import FOLDER, PROGRAM
from tests.gateway.servers import DEADLINE_S, JsonHandler, LoopbackServer, StreamServer, needs_haproxy
from tests.waiting import wait_until

if TYPE_CHECKING:  # each worker of pytest would import them for seconds, and one runs these tests
    import anthropic
    import openai

pytestmark = needs_haproxy
BODY: dict[str, Any] = {"model": "qwen", "messages": []}
CHAT = 'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"qwen","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "qwen", "output": [], "status": "in_progress",
}  # fmt: skip
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


class _DyingHandler(JsonHandler):
    server: DyingServer

    def do_POST(self) -> None:
        body = self.read_json()
        self.close_connection = True
        if body.get("max_tokens") == 1:
            self.send_content({"choices": [{"message": {"content": "x"}}]})
            return
        self.server.requests += 1
        if body.get("stream"):
            self.begin_stream()
            self.send_chunk(FIRST_EVENTS[self.path].encode())
            self.server.go_on.wait(20)


class DyingServer(LoopbackServer):
    """A server that is up, and closes the connection before it answers a request, or in the middle of a stream."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _DyingHandler)
        self.requests = 0


@pytest.fixture
def dying() -> Iterator[DyingServer]:
    with DyingServer("one") as server:
        yield server


@pytest.fixture(params=["installed", "newer"])
def adds_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run with each HAProxy. Return True if it adds an error to a broken stream."""
    if request.param == "newer":
        if not PROGRAM.exists():
            pytest.skip("`python -m tests.gateway.newer_haproxy` makes a newer HAProxy")
        monkeypatch.setenv("PATH", f"{FOLDER}:{os.environ['PATH']}")
    version = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout.split()[2]
    return tuple(map(int, version.split(".")[:2])) >= (2, 8)


def test_a_request_without_an_answer_is_retried_at_another_server(
    tmp_path: Path, dying: DyingServer, other: StreamServer, adds_errors: bool
) -> None:
    with serve_models(tmp_path, build_model("qwen", dying, other)) as lab:
        answers = []
        for _ in range(6):
            lab.idle()
            answers.append(lab.chat(BODY))
        assert {answer.json["from"] for answer in answers} == {"two"} and dying.requests


@pytest.mark.parametrize("affinity", ["none", "prefix"])
def test_a_request_that_crashes_servers_reaches_two_at_most(
    tmp_path: Path, dying: DyingServer, adds_errors: bool, affinity: str
) -> None:
    with DyingServer("two") as second, DyingServer("three") as third:
        servers = (dying, second, third)
        with serve_models(tmp_path, build_model("qwen", *servers), affinity=affinity) as lab:
            assert lab.chat(BODY).error == (502, "server_gone")
        assert sorted(server.requests for server in servers) == [0, 1, 1]


@pytest.mark.parametrize("affinity", ["none", "prefix"])
def test_a_request_that_reached_no_server_is_sent_to_another(
    tmp_path: Path, dying: DyingServer, other: StreamServer, adds_errors: bool, affinity: str
) -> None:
    """The server is not yet known to be down."""
    with serve_models(tmp_path, build_model("qwen", dying, other), affinity=affinity) as lab:
        dying.shutdown()
        dying.server_close()
        lab.idle()
        assert [lab.chat(BODY).json["from"] for _ in range(6)] == ["two"] * 6


def count_queued(lab: RunningGateway) -> int:
    return int(statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))[0]["queued"])


@pytest.mark.parametrize("waits", [False, True], ids=["refuse", "wait"])
def test_requests_wait_for_the_other_server_if_one_refuses_connections(
    tmp_path: Path, dying: DyingServer, other: StreamServer, adds_errors: bool, waits: bool
) -> None:
    """The other one has as many requests as it takes at a time, so it has more than the server that is gone."""
    model = build_model("qwen", dying, other, slots=1)
    with serve_models(tmp_path, model, waits=waits) as lab, ThreadPoolExecutor(3) as pool:
        dying.shutdown()
        dying.server_close()
        lab.idle()
        other.go_on.clear()
        answers = [pool.submit(lab.chat, BODY)]
        assert other.part_sent.acquire(timeout=DEADLINE_S)
        answers += [pool.submit(lab.chat, BODY) for _ in range(2)]
        wait_until(lambda: count_queued(lab) == 2 or any(answer.done() for answer in answers))
        other.go_on.set()
        assert [answer.result().json.get("from") for answer in answers] == ["two"] * 3


@pytest.mark.parametrize("waits", [False, True], ids=["refuse", "wait"])
def test_a_request_that_crashes_the_only_server_is_not_sent_again(
    tmp_path: Path, dying: DyingServer, waits: bool
) -> None:
    with serve_models(tmp_path, build_model("qwen", dying), waits=waits) as lab:
        assert lab.chat(BODY).error == (502, "server_gone")
    assert dying.requests == 1


def stream_chat(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="qwen", messages=[{"role": "user", "content": "x"}], stream=True)


def stream_completions(client: openai.OpenAI) -> Any:
    return client.completions.create(model="qwen", prompt="x", stream=True)


def stream_responses(client: openai.OpenAI) -> Any:
    return client.responses.create(model="qwen", input="x", stream=True)


def stream_messages(client: anthropic.Anthropic) -> Any:
    content: Any = [{"role": "user", "content": "x"}]
    return client.messages.create(model="qwen", messages=content, max_tokens=9, stream=True)


def connect_openai(port: int) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0, timeout=20)


def connect_anthropic(port: int) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key=KEY, max_retries=0, timeout=20)


@pytest.mark.parametrize(
    ("connect", "ask"),
    [
        (connect_openai, stream_chat),
        (connect_openai, stream_completions),
        (connect_openai, stream_responses),
        (connect_anthropic, stream_messages),
    ],
)
def test_client_libraries_raise_an_error_for_a_broken_stream(
    tmp_path: Path, dying: DyingServer, adds_errors: bool, connect: Callable[[int], Any], ask: Callable[[Any], Any]
) -> None:
    """With a newer HAProxy it is an error of the API, otherwise an error of the connection."""
    import anthropic
    import openai

    errors = (openai.APIError, anthropic.APIError) if adds_errors else (Exception,)
    with serve_models(tmp_path, build_model("qwen", dying)) as lab:
        client = connect(lab.gateway.port)
        stream = iter(ask(client))
        assert next(stream)
        dying.go_on.set()
        with pytest.raises(errors) as raised:
            next(stream)
        client.close()
    assert not adds_errors or "so this answer is incomplete" in str(raised.value)


@pytest.mark.parametrize("ends", [True, False], ids=["server ends", "server is silent"])
def test_a_broken_stream_has_no_end(tmp_path: Path, dying: DyingServer, adds_errors: bool, ends: bool) -> None:
    """So even a client that ignores errors can tell that the answer is incomplete."""
    if ends:
        dying.go_on.set()
    with (
        serve_models(tmp_path, build_model("qwen", dying), answer_s=2) as lab,
        pytest.raises(http.client.IncompleteRead) as raised,
    ):
        lab.begin_stream(**BODY).read()
    events = raised.value.partial.decode().split("\n\n")
    assert events[0] == CHAT.strip() and "[DONE]" not in events
    added = [json.loads(event.strip().removeprefix("data: "))["error"]["code"] for event in events[1:] if event.strip()]
    assert added == (["server_gone"] if adds_errors else [])

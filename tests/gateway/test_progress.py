"""A server that answers everything but requests, behind a real HAProxy: its engine's counters stall, and no client waits for it."""

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.http import MetricSample
from sparkwright.gateway import progress
from sparkwright.gateway.model import Model, Progress
from tests.gateway.loopback import (
    DEADLINE_S,
    KEY,
    Answer,
    RunningGateway,
    StreamServer,
    build_gateway,
    build_model,
    run_gateway,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
PROGRESS = Progress(
    "/metrics",
    (MetricSample("engine:generated_total"), MetricSample("engine:steps_total", 'mode="decode"')),
    (MetricSample("engine:running"), MetricSample("engine:waiting")),
)
STUCK_S = 1
BODY = {"model": "qwen", "messages": []}


class WedgedServer(ThreadingHTTPServer):
    """An engine that stalls once it has a request, until `go_on`; its front end keeps answering."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _FrontHandler)
        self.name, self.read = name, 0
        self.steps, self.requests, self.works = 7, 0, False
        #: it stopped before its first request, which its engine therefore does not count; its front end stopped, too
        self.stopped, self.frozen = False, False
        self.began = threading.Semaphore(0)
        self.go_on = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: the client has disconnected."""


class _FrontHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WedgedServer

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.read += 1
        if self.server.frozen:
            self.server.go_on.wait(DEADLINE_S)
        self.server.steps += self.server.works
        text = (
            f'# HELP engine:generated_total x\nengine:generated_total{{model="q"}} 5.0\n'
            f'engine:steps_total{{mode="prefill"}} {time.monotonic()}\nengine:steps_total{{mode="decode"}} {self.server.steps}\n'
            f"engine:running {self.server.requests}\nengine:waiting 0.0\n"
        )
        self._answer(text.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("max_tokens") == 1:
            if self.server.requests or self.server.stopped:
                self.server.go_on.wait(DEADLINE_S)
            self._answer(b'{"choices": []}')
            return
        self.server.requests += not self.server.stopped
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"9\r\ndata: 1\n\n\r\n")
        self.server.began.release()
        self.server.go_on.wait(DEADLINE_S)
        self.server.requests -= not self.server.stopped
        if not body.get("stream"):
            self._answer(json.dumps({"choices": [{}], "from": self.server.name}).encode())

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the counters each second."""
    monkeypatch.setattr(progress, "POLL_INTERVAL_S", 1)


@pytest.fixture
def wedged() -> Iterator[WedgedServer]:
    with WedgedServer("one") as server:
        yield server
        server.go_on.set()
        server.shutdown()


def build_watched_model(*servers: Any) -> Model:
    plain_model = build_model("qwen", *servers)
    return replace(
        plain_model, upstreams=tuple(replace(upstream, progress=PROGRESS) for upstream in plain_model.upstreams)
    )


def send_to_wedged(pool: ThreadPoolExecutor, lab: RunningGateway, wedged: WedgedServer) -> Future[Answer]:
    """Return the answer to a request that the wedged server has; it takes the first or second of an idle pair."""
    while True:
        options = pool.submit(lab.chat, BODY)
        if wedged.began.acquire(timeout=1.0):
            return options
        assert options.result(DEADLINE_S).status == 200


def is_down(lab: RunningGateway, name: str = "one") -> bool:
    text = lab.ask("GET", "/metrics").body.decode()
    return f'haproxy_server_status{{proxy="qwen",server="{name}",state="DOWN"}} 1' in text


def test_requests_of_a_server_that_stands_still_are_answered_by_another(tmp_path: Path, wedged: WedgedServer) -> None:
    other = StreamServer("two")
    rendered = build_gateway(build_watched_model(wedged, other), check_s=1, stuck_s=STUCK_S)
    with run_gateway(tmp_path, rendered) as lab, ThreadPoolExecutor(4) as pool:
        lab.up("qwen")
        wait_until(lambda: not is_down(lab, "two"))
        answer = send_to_wedged(pool, lab, wedged).result(DEADLINE_S)
        assert (answer.status, answer.json["from"]) == (200, "two")
        assert is_down(lab) and lab.chat(BODY).json["from"] == "two"
        wedged.go_on.set()
        wait_until(lambda: not is_down(lab))
    other.shutdown()


@pytest.mark.parametrize("frozen", [False, True], ids=["its engine", "all of it"])
def test_a_server_that_stopped_before_its_first_request_is_found_too(
    tmp_path: Path, wedged: WedgedServer, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM counts a request when its engine takes it; a front end that hangs shows no counter at all."""
    monkeypatch.setattr(progress, "READ_TIMEOUT_S", 1)
    other = StreamServer("two")
    with (
        run_gateway(tmp_path, build_gateway(build_watched_model(wedged, other), check_s=60, stuck_s=STUCK_S)) as lab,
        ThreadPoolExecutor(4) as pool,
    ):
        lab.up("qwen")
        wait_until(lambda: not is_down(lab, "two"))
        wedged.stopped, wedged.frozen = True, frozen
        answer = send_to_wedged(pool, lab, wedged).result(DEADLINE_S)
        assert (answer.status, answer.json["from"]) == (200, "two")
        assert is_down(lab)
    other.shutdown()


def test_a_stream_that_stands_still_is_cut_and_seen_as_cut(tmp_path: Path, wedged: WedgedServer) -> None:
    other = StreamServer("two")
    rendered = build_gateway(build_watched_model(wedged, other), check_s=1, stuck_s=STUCK_S)
    with run_gateway(tmp_path, rendered) as lab:
        lab.up("qwen")
        wait_until(lambda: not is_down(lab, "two"))
        while True:
            link = lab.connection()
            link.request(
                "POST",
                "/v1/chat/completions",
                json.dumps({**BODY, "stream": True}),
                {"Authorization": f"Bearer {KEY}"},
            )
            answer = link.getresponse()
            if wedged.began.acquire(timeout=0.5):
                break
            answer.read()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
    other.shutdown()


def test_the_only_server_is_down_for_new_requests_and_ends_none_that_it_may_still_answer(
    tmp_path: Path, wedged: WedgedServer
) -> None:
    rendered = build_gateway(build_watched_model(wedged), check_s=1, stuck_s=STUCK_S)
    with run_gateway(tmp_path, rendered) as lab, ThreadPoolExecutor(4) as pool:
        lab.up("qwen")
        options = send_to_wedged(pool, lab, wedged)
        wait_until(lambda: is_down(lab))
        refused = lab.chat(BODY)
        assert (refused.status, refused.json["error"]["code"]) == (503, "model_not_up")
        wedged.go_on.set()
        assert options.result(DEADLINE_S).json["from"] == "one"
        lab.up("qwen")


def test_a_request_of_the_only_server_ends_after_the_longest_silence(tmp_path: Path, wedged: WedgedServer) -> None:
    rendered = build_gateway(build_watched_model(wedged), check_s=1, stuck_s=STUCK_S, answer_s=4)
    with run_gateway(tmp_path, rendered) as lab, ThreadPoolExecutor(4) as pool:
        lab.up("qwen")
        answer = send_to_wedged(pool, lab, wedged).result(DEADLINE_S)
    assert (answer.status, answer.json["type"], answer.json["error"]["code"]) == (504, "error", "server_timeout")


@pytest.mark.parametrize("how", ["steps", "nothing to read", "no requests"])
def test_a_server_that_works_or_tells_nothing_keeps_its_requests(
    tmp_path: Path, wedged: WedgedServer, how: str
) -> None:
    """A long prompt generates no token for minutes; only its steps progress."""
    other = StreamServer("two")
    wedged.works = how == "steps"
    counters = replace(PROGRESS, moves=(MetricSample("no:such"),)) if how == "nothing to read" else PROGRESS
    watched_model = build_watched_model(wedged, other)
    watched_model = replace(
        watched_model, upstreams=tuple(replace(upstream, progress=counters) for upstream in watched_model.upstreams)
    )
    with (
        run_gateway(tmp_path, build_gateway(watched_model, check_s=60, stuck_s=STUCK_S)) as lab,
        ThreadPoolExecutor(4) as pool,
    ):
        lab.up("qwen")
        wait_until(lambda: not is_down(lab, "two"))
        options = send_to_wedged(pool, lab, wedged)
        if how == "no requests":  # its client does not read what was answered
            wedged.requests = 0
        before = wedged.read
        wait_until(lambda: wedged.read > before + STUCK_S + 2)
        assert not is_down(lab) and not options.done()
        wedged.go_on.set()
        assert options.result(DEADLINE_S).json["from"] == "one"
    other.shutdown()


def test_an_idle_server_is_not_read(tmp_path: Path, wedged: WedgedServer) -> None:
    with run_gateway(tmp_path, build_gateway(build_watched_model(wedged), stuck_s=STUCK_S)) as lab:
        lab.up("qwen")
        before = wedged.read
        for _ in range(15):
            assert lab.ask("GET", "/health").status == 200
            time.sleep(0.1)
        assert wedged.read == before

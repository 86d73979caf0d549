"""A server with a stalled engine behind a real HAProxy: its counters stop, and its requests are answered by another server."""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.http import MetricSample
from sparkwright.gateway import progress
from sparkwright.gateway.model import Progress
from tests.gateway.loopback import Answer, RunningGateway, build_model, serve_models
from tests.gateway.servers import DEADLINE_S, JsonHandler, LoopbackServer, StreamServer, needs_haproxy
from tests.waiting import wait_until

pytestmark = needs_haproxy
PROGRESS = Progress(
    "/metrics",
    (MetricSample("engine:generated_total"), MetricSample("engine:steps_total", 'mode="decode"')),
    (MetricSample("engine:running"), MetricSample("engine:waiting")),
)
STUCK_S = 1
BODY: dict[str, Any] = {"model": "qwen", "messages": []}


class WedgedServer(LoopbackServer):
    """An engine that stalls once it has a request, until `go_on`; its front end keeps answering."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _FrontHandler)
        #: how often its counters were read
        self.read = 0
        self.steps, self.requests, self.works = 7, 0, False
        #: the engine stopped before its first request, which it therefore does not count; the front end stopped, too
        self.stopped, self.frozen = False, False
        self.began = threading.Semaphore(0)


class _FrontHandler(JsonHandler):
    server: WedgedServer

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
        self.send_content(text.encode())

    def do_POST(self) -> None:
        body = self.read_json()
        if body.get("max_tokens") == 1:
            if self.server.requests or self.server.stopped:
                self.server.go_on.wait(DEADLINE_S)
            self.send_content({"choices": []})
            return
        self.server.requests += not self.server.stopped
        if body.get("stream"):
            self.begin_stream()
            self.send_chunk(b"data: 1\n\n")
        self.server.began.release()
        self.server.go_on.wait(DEADLINE_S)
        self.server.requests -= not self.server.stopped
        if not body.get("stream"):
            self.send_content({"choices": [{}], "from": self.server.name})


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the counters each second."""
    monkeypatch.setattr(progress, "POLL_INTERVAL_S", 1)


@pytest.fixture
def wedged() -> Iterator[WedgedServer]:
    with WedgedServer("one") as server:
        yield server


@contextlib.contextmanager
def run_watched(folder: Path, *servers: Any, counters: Progress = PROGRESS, **changes: Any) -> Iterator[RunningGateway]:
    """Run a gateway that watches the counters of these servers, all of them up."""
    model = build_model("qwen", *servers)
    watched = replace(model, upstreams=tuple(replace(upstream, progress=counters) for upstream in model.upstreams))
    with serve_models(folder, watched, stuck_s=STUCK_S, **changes) as lab:
        wait_until(lambda: not any(is_down(lab, server.name) for server in servers))
        yield lab


def send_to_wedged(pool: ThreadPoolExecutor, lab: RunningGateway, wedged: WedgedServer) -> Future[Answer]:
    """Return the pending answer to a request at the wedged server, which gets the first or second of an idle pair."""
    while True:
        pending = pool.submit(lab.chat, BODY)
        if wedged.began.acquire(timeout=1.0):
            return pending
        assert pending.result(DEADLINE_S).status == 200


def is_down(lab: RunningGateway, name: str = "one") -> bool:
    text = lab.ask("GET", "/metrics").body.decode()
    return f'haproxy_server_status{{proxy="qwen",server="{name}",state="DOWN"}} 1' in text


def test_requests_at_a_stalled_server_are_answered_by_another(
    tmp_path: Path, wedged: WedgedServer, other: StreamServer
) -> None:
    with run_watched(tmp_path, wedged, other, check_s=1) as lab, ThreadPoolExecutor(4) as pool:
        answer = send_to_wedged(pool, lab, wedged).result(DEADLINE_S)
        assert (answer.status, answer.json["from"]) == (200, "two")
        assert is_down(lab) and lab.chat(BODY).json["from"] == "two"
        wedged.go_on.set()
        wait_until(lambda: not is_down(lab))


@pytest.mark.parametrize("frozen", [False, True], ids=["engine stopped", "front end stopped too"])
def test_a_server_that_stops_before_its_first_request_is_detected(
    tmp_path: Path, wedged: WedgedServer, other: StreamServer, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM counts a request when its engine accepts it; a front end that hangs returns no counters at all."""
    monkeypatch.setattr(progress, "READ_TIMEOUT_S", 1)
    with run_watched(tmp_path, wedged, other, check_s=60) as lab, ThreadPoolExecutor(4) as pool:
        wedged.stopped, wedged.frozen = True, frozen
        answer = send_to_wedged(pool, lab, wedged).result(DEADLINE_S)
        assert (answer.status, answer.json["from"]) == (200, "two")
        assert is_down(lab)


def test_a_stalled_stream_breaks_off(tmp_path: Path, wedged: WedgedServer, other: StreamServer) -> None:
    with run_watched(tmp_path, wedged, other, check_s=1) as lab:
        while True:
            response = lab.begin_stream(**BODY)
            if wedged.began.acquire(timeout=0.5):
                break
            response.read()
        with pytest.raises(http.client.IncompleteRead):
            response.read()


def test_a_stalled_only_server_refuses_new_requests_and_keeps_running_ones(
    tmp_path: Path, wedged: WedgedServer
) -> None:
    with run_watched(tmp_path, wedged, check_s=1) as lab, ThreadPoolExecutor(4) as pool:
        pending = send_to_wedged(pool, lab, wedged)
        wait_until(lambda: is_down(lab))
        assert lab.chat(BODY).error == (503, "model_not_up")
        wedged.go_on.set()
        assert pending.result(DEADLINE_S).json["from"] == "one"
        lab.up("qwen")


def test_a_request_at_a_stalled_only_server_times_out(tmp_path: Path, wedged: WedgedServer) -> None:
    with run_watched(tmp_path, wedged, check_s=1, answer_s=4) as lab, ThreadPoolExecutor(4) as pool:
        answer = send_to_wedged(pool, lab, wedged).result(DEADLINE_S)
    assert (*answer.error, answer.json["type"]) == (504, "server_timeout", "error")


@pytest.mark.parametrize("case", ["steps progress", "no counter", "no running requests"])
def test_a_server_without_proof_of_a_stall_keeps_its_requests(
    tmp_path: Path, wedged: WedgedServer, other: StreamServer, case: str
) -> None:
    """A long prompt generates no token for minutes; only its steps progress."""
    wedged.works = case == "steps progress"
    counters = replace(PROGRESS, moves=(MetricSample("no:such"),)) if case == "no counter" else PROGRESS
    with run_watched(tmp_path, wedged, other, counters=counters, check_s=60) as lab, ThreadPoolExecutor(4) as pool:
        pending = send_to_wedged(pool, lab, wedged)
        if case == "no running requests":  # the client does not read the answer
            wedged.requests = 0
        before = wedged.read
        wait_until(lambda: wedged.read > before + STUCK_S + 2)
        assert not is_down(lab) and not pending.done()
        wedged.go_on.set()
        assert pending.result(DEADLINE_S).json["from"] == "one"


def test_the_counters_of_an_idle_server_are_not_read(tmp_path: Path, wedged: WedgedServer) -> None:
    with run_watched(tmp_path, wedged) as lab:
        before = wedged.read
        for _ in range(15):
            assert lab.ask("GET", "/health").status == 200
            time.sleep(0.1)
        assert wedged.read == before

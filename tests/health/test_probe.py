"""Observations of a fake server: when it counts as generating tokens, and when not."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.health.judging.judge import evaluate_observation
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.probe import Prober
from sparkwright.health.store import CheckHistory
from sparkwright.protocol.container import CLUSTER_LABEL, MEMBERS_LABEL, RANK_LABEL
from sparkwright.secret import Secret
from tests.http_servers import QuietHandler, in_background
from tests.modules.context import RecordingContext

LIMITS = Limits(token_s=0.3)


@dataclass
class FakeServer:
    """A server on loopback."""

    port: int = 0
    #: running requests
    running: float = 0
    #: values of the counter at each read; the last one is repeated
    generated: list[float] = field(default_factory=lambda: [100.0])
    #: the required API key
    key: str = ""
    #: True if it generates tokens
    answers: bool = True
    #: error in a response with status 200; empty for none
    error: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)

    def metrics(self) -> str:
        count = self.generated.pop(0) if len(self.generated) > 1 else self.generated[0]
        return f"vllm:num_requests_running {self.running}\nvllm:generation_tokens_total {count}\n"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    value = FakeServer()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answers = {"/health": "", "/version": '{"version": "0.32.0"}'}
            self.reply(200, answers[self.path] if self.path in answers else value.metrics())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if value.key and self.headers["Authorization"] != f"Bearer {value.key}":
                return self.reply(401, "{}")
            if not value.answers:
                value.stopped.wait(10)
                return None
            message = {"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 1}}
            message |= {"error": {"message": value.error}} if value.error else {}
            return self.reply(200, json.dumps(message))

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    value.port = web.server_port
    with in_background(web):
        yield value
        value.stopped.set()


def observe(
    server: FakeServer, home: Path, *, labels: dict[str, str] | None = None, limits: Limits = LIMITS, **machine: Any
) -> Observation:
    """Observe once, without Docker. labels: those of the verified container."""
    context = RecordingContext(home, docker_host="unix:///nonexistent.sock", **machine)
    spec = {"name": "qwen", "image": "vllm", "ports": [f"127.0.0.1:{server.port}:8000"], "labels": labels or {}}
    context.state.write("verified", {"spec": spec, "serve": {"served_name": "qwen"}})
    return Prober(context, CheckHistory(), limits, pause=lambda seconds: None).probe()


def test_a_token_is_requested_from_an_idle_server(server: FakeServer, tmp_path: Path) -> None:
    result = observe(server, tmp_path)
    assert (result.server.token, result.engine_version) == ("made", "0.32.0")


@pytest.mark.parametrize("generated", [[100.0, 101.0], [100.0, 100.0, 150.0]], ids=["before", "while queued"])
def test_no_token_is_needed_if_other_requests_progress(
    server: FakeServer, tmp_path: Path, generated: list[float]
) -> None:
    server.running, server.generated, server.answers = 3, generated, False
    result = observe(server, tmp_path)
    assert result.server.token == "skipped"
    levels = {item.check: item.level for item in evaluate_observation(result, LIMITS).evidence}
    assert (levels["token"], levels["stall"]) == ("ok", "ok")


def test_an_idle_server_without_a_token_is_wedged(server: FakeServer, tmp_path: Path) -> None:
    server.answers = False
    result = observe(server, tmp_path)
    assert result.server.token == "none" and evaluate_observation(result, LIMITS).state == "wedged"


def test_an_error_in_a_response_with_status_200_is_an_error(server: FakeServer, tmp_path: Path) -> None:
    server.error = "EngineCore encountered an issue."
    result = observe(server, tmp_path)
    assert (result.server.token, result.error) == ("error", "200: EngineCore encountered an issue.")


def test_a_server_with_a_key_is_unknown_only_without_the_key(server: FakeServer, tmp_path: Path) -> None:
    server.key = "k1"
    without = observe(server, tmp_path)
    assert without.server.token == "refused" and evaluate_observation(without, LIMITS).state == "unknown"
    assert observe(server, tmp_path, secrets={"VLLM_API_KEY": Secret("k1")}).server.token == "made"


def test_a_single_check_detects_a_hung_group_of_a_cluster(server: FakeServer, tmp_path: Path) -> None:
    """The head returns 200 until its engine exits. For a server outside a cluster, two checks are needed."""
    server.running, server.answers = 1, False
    limits = Limits(token_s=0.1, frozen_s=0.5)
    head = {CLUSTER_LABEL: "pair", RANK_LABEL: "0", MEMBERS_LABEL: "one,two"}
    result = observe(server, tmp_path, labels=head, limits=limits)
    judged = evaluate_observation(replace(result, engine_error=""), limits)
    assert (judged.state, judged.cure) == ("stalled", "restart")
    assert judged.why.endswith("with 1 request running: a rank of its cluster is gone or hung")
    assert observe(server, tmp_path, limits=limits).frozen_s is None
    server.generated = [100.0, 100.0, 150.0]
    assert observe(server, tmp_path, labels=head, limits=limits).server.token == "skipped"


def test_a_worker_without_a_port_receives_no_requests(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host="unix:///nonexistent.sock")
    labels = {CLUSTER_LABEL: "pair", RANK_LABEL: "1", MEMBERS_LABEL: "one,two"}
    spec = {"name": "qwen", "image": "vllm", "labels": labels}
    context.state.write("verified", {"spec": spec, "serve": {"served_name": "qwen"}})
    observation = Prober(context, CheckHistory(), LIMITS, pause=lambda seconds: None).probe()
    assert (observation.rank.cluster, observation.rank.rank, observation.server.health_status) == ("pair", 1, None)

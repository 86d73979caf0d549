"""Draining an interim server at gateways that stop answering."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from json import dumps

import pytest

from sparkwright.host.gateway import interim
from sparkwright.host.gateway.server_operations import Gateway
from tests.http_servers import QuietHandler, in_background

KEY = "0" * 64


@contextmanager
def serve_gateway(counts: list[int]) -> Iterator[Gateway]:
    """Serve a gateway that answers one query of its servers with each count of running requests, and then fails."""
    answers = iter(counts)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            count = next(answers, None)
            if count is None:
                self.send_error(503)
                return
            row = {"backend": "chat", "server": "spark1::interim", "status": "DRAIN", "running": count, "requests": 9}
            self.reply(200, dumps({"servers": [row]}))

    server = HTTPServer(("127.0.0.1", 0), Handler)
    with in_background(server):
        yield Gateway("lab", "127.0.0.1", server.server_port, tls=False, server="spark1")


class SimulatedClock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.mark.parametrize(
    ("counts", "drain_s", "running", "unanswered"),
    [
        ([2, 2, 0], 60.0, 0, []),
        ([2, 2, 2, 2], 0.3, 2, []),
        ([2, 2, 2], 0.5, 2, ["lab"]),
        ([], 60.0, 0, ["lab"]),
    ],
    ids=["idle", "still busy", "stops answering", "never answers"],
)
def test_drain_counts_a_silent_gateway_as_it_last_answered(
    counts: list[int], drain_s: float, running: int, unanswered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interim, "time", SimulatedClock())
    with serve_gateway(counts) as gateway:
        assert interim.drain_requests([gateway], KEY, drain_s) == (running, unanswered)

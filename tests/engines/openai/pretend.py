"""A simulated server on loopback with OpenAI's API, and with its own paths and metrics."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from tests.http_servers import QuietHandler, in_background

SECTION = {
    "served_name": "m",
    "port": 9000,
    "health": "/v1/health/ready",
    "loading": [502, 503],
    "models": "/openai/models",
    "version": "/v1/version",
    "settings": {"path": "/info", "max_model_len": "limits.max_seq_len", "kv_cache_dtype": "kv"},
    "metrics": {
        "path": "/stats/prom",
        "generated": "done_tokens_total",
        "heartbeat": 'steps_total{mode="decode"}',
        "running": "busy_requests",
        "waiting": "queued_requests",
    },
}
DESCRIBED: Engine = engine.get_engine("openai").with_section(SECTION)


@dataclass
class FakeServer:
    """A simulated server with OpenAI's API."""

    #: status of the health path
    status: int = 200
    #: refuse keys that are not in OpenAI's API
    strict: bool = False
    key: str = ""
    steps: int = 0
    done: int = 0
    running: int = 0
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, body: Any, key: str) -> tuple[int, Any]:
        self.requests.append(path)
        if path == "/v1/health/ready":
            return self.status, ""
        if self.key and key != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if path == "/stats/prom":
            return 200, (
                f'steps_total{{mode="prefill"}} 7\nsteps_total{{mode="decode"}} {self.steps}\n'
                f"done_tokens_total {self.done}\nbusy_requests {self.running}\nqueued_requests 0\n"
            )
        if path == "/openai/models":
            return 200, {"data": [{"id": "m", "owned_by": "somebody"}]}
        if path == "/v1/version":
            return 200, {"version": "2.1.0"}
        if path == "/info":
            return 200, {"limits": {"max_seq_len": 4096}, "kv": {"not": "text"}}
        if path == "/v1/chat/completions":
            unknown = body.keys() - {"model", "messages", "max_tokens", "temperature", "stream"}
            if self.strict and unknown:
                return 422, {"error": {"message": f"extra fields: {sorted(unknown)}"}}
            self.steps, self.done = self.steps + body["max_tokens"], self.done + body["max_tokens"]
            message = {"role": "assistant", "content": "one two"}
            return 200, {"choices": [{"message": message}], "usage": {"completion_tokens": body["max_tokens"]}}
        return 404, {"detail": "Not Found"}


@contextmanager
def serving(plan: FakeServer) -> Iterator[FakeServer]:
    """Listen on loopback while the block runs."""

    class Api(QuietHandler):
        server_version = "pretend"

        def do_GET(self) -> None:
            self._send(plan.answer(self.path, None, self.headers.get("Authorization", "")))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(plan.answer(self.path, body, self.headers.get("Authorization", "")))

        def _send(self, answer: tuple[int, Any]) -> None:
            status, body = answer
            self.reply(status, body if isinstance(body, str) else json.dumps(body))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    plan.url = f"http://127.0.0.1:{server.server_address[1]}"
    with in_background(server):
        yield plan

"""A pretend SGLang that answers as the source of 0.5.23 says: its keys, its refusals, a counter that only moves when a request ends.

It is no evidence of what SGLang does: docs/engine-agreement.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

#: paths that begin with these are answered without the key
OPEN = ("/health", "/ready", "/metrics")


@dataclass
class Pretend:
    """status: starting, up or wedged (/health gets no token in time). decoded: steps of a request that has not ended."""

    status: str = "up"
    key: str = ""
    metrics: bool = True
    decoded: int = 0
    ended: int = 0
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, body: Any, key: str) -> tuple[int, Any]:
        self.asked.append(path)
        if self.key and not path.startswith(OPEN) and key != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if path in ("/health", "/health_generate"):
            return (200 if self.status == "up" else 503), ""
        if path == "/metrics" and self.metrics:
            labels = 'model_name="m"'
            return 200, (
                f"sglang:num_running_reqs{{{labels}}} 1.0\nsglang:generation_tokens_total{{{labels}}} {self.ended}.0\n"
                f'sglang:realtime_tokens_total{{mode="decode",{labels}}} {self.decoded}.0\n'
            )
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": "sglang", "root": "m", "max_model_len": 131072}]}
        if path == "/server_info":
            return 200, {"chunked_prefill_size": 2048, "disable_radix_cache": False, "version": "0.5.23"}
        if path == "/v1/chat/completions" and self.status == "up":
            self.decoded, self.ended = self.decoded + body["max_tokens"], self.ended + body["max_tokens"]
            message = {"role": "assistant", "content": "one two", "reasoning_content": None}
            return 200, {
                "choices": [{"index": 0, "message": message}],
                "usage": {"completion_tokens": body["max_tokens"]},
            }
        return 404, {"detail": "Not Found"}


@contextmanager
def serving(plan: Pretend) -> Iterator[Pretend]:
    """It listens on loopback while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        server_version: ClassVar[str] = "uvicorn"

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Any) -> None:
            status, said = plan.answer(self.path, body, self.headers.get("Authorization", ""))
            raw = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        plan.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield plan
        finally:
            server.shutdown()
            thread.join()

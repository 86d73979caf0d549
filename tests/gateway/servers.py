"""Servers on the loopback, to be put behind a real HAProxy."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
CHAT = "/v1/chat/completions"
DEADLINE_S = 20.0


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port, which a thread serves until the end of the `with` block or `shutdown`."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, name: str, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.name, self.go_on = name, threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client, or a check of HAProxy, has disconnected."""

    def __exit__(self, *error: Any) -> None:
        self.go_on.set()
        self.shutdown()
        super().__exit__(*error)


class JsonHandler(BaseHTTPRequestHandler):
    """The responses of the servers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words: Any) -> None:
        pass

    def read_json(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send_content(self, content: Any, status: int = 200) -> None:
        """Send a response. The content is sent as it is if bytes, as JSON otherwise."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, part: bytes) -> None:
        """Send a part of a stream; an empty one ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


class StreamServer(LoopbackServer):
    """A server that holds back the end of its answers until `go_on`, counts its running requests, and stores them."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _StreamHandler)
        self.go_on.set()
        self.part_sent, self.healthy = threading.Semaphore(0), True
        self.seen: list[dict[str, Any]] = []
        self.running, self.most = 0, 0
        self.mutex = threading.Lock()


class _StreamHandler(JsonHandler):
    server: StreamServer

    def do_POST(self) -> None:
        raw = self._body()
        body = json.loads(raw)
        if body.get("input") == "Say ok.":  # the token check of an embedding server
            ok = {"object": "list", "data": [{"index": 0, "embedding": [0.1]}]}
            here = self.server.healthy and self.path == "/v1/embeddings"
            self.send_content(ok if here else {"error": {"message": "no", "data": []}}, 200 if here else 500)
            return
        if body.get("max_tokens") == 1:  # the token check
            healthy = self.server.healthy
            self.send_content({"choices": []} if healthy else {"error": "no"}, 200 if healthy else 500)
            return
        with self.server.mutex:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
            self.server.seen.append(
                {"body": body, "raw": raw, "headers": {name.lower(): value for name, value in self.headers.items()}}
            )
        try:
            self._stream(body) if body.get("stream") else self._slowly(body)
        finally:
            with self.server.mutex:
                self.server.running -= 1

    def _slowly(self, body: dict[str, Any]) -> None:
        self.server.part_sent.release()
        self.server.go_on.wait(DEADLINE_S)
        usage = {"usage": body["usage"]} if "usage" in body else {}
        self.send_content({"choices": [{}], "from": self.server.name, **usage})

    def _stream(self, body: dict[str, Any]) -> None:
        self.begin_stream()
        self.send_chunk(b"data: 1\n\n")
        self.server.part_sent.release()
        self.server.go_on.wait(DEADLINE_S)
        for part in (*(body.get("parts") or ()), "data: [DONE]\n\n", ""):
            self.send_chunk(part.encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

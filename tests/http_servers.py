"""HTTP servers of tests, on the loopback or on a unix socket."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs no requests."""

    def reply(self, status: int, body: bytes | str = b"", headers: Mapping[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None: ...


@contextlib.contextmanager
def in_background(server: socketserver.BaseServer) -> Iterator[None]:
    """Answer requests while the block runs."""
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()

"""The HTTP server and the base request handler of all simulated services."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class HttpError(Exception):
    """An error response: HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Parses a request into the `parts` of its path, its `query` and its `raw_body`. Subclasses implement `route`."""

    protocol_version = "HTTP/1.1"
    server_version = "sandbox"
    timeout = 600

    def setup(self) -> None:
        super().setup()
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def route(self) -> None:
        """Answer the request."""
        raise NotImplementedError

    def handle_method(self) -> None:
        """Read the request and answer it with `route`."""
        url = urlsplit(self.path)
        self.parts = [unquote(part) for part in url.path.split("/") if part]
        self.query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        length = int(self.headers.get("Content-Length") or 0)
        is_chunked = self.headers.get("Transfer-Encoding", "") == "chunked"
        self.raw_body = b"".join(self._body_chunks()) if is_chunked else self.rfile.read(length) if length else b""
        try:
            self.route()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = handle_method

    def _body_chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(32), 16):
            yield self.rfile.read(size)
            self.rfile.readline(32)
        self.rfile.readline(32)

    def body(self) -> Any:
        """Return the request's parsed JSON body, or None if it is missing or invalid."""
        try:
            return json.loads(self.raw_body) if self.raw_body else None
        except ValueError:
            return None

    def reply(self, status: int, payload: Any = None, headers: dict[str, str] | None = None) -> None:
        """Send a complete response. A payload that is neither bytes nor None is encoded as JSON."""
        data = payload or b""
        if payload is not None and not isinstance(payload, bytes):  # no spaces, as in the real services
            data = json.dumps(payload, separators=(",", ":")).encode()
        self.send_response(status)
        if payload is not None and not isinstance(payload, bytes):
            self.send_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def stream(self, chunks: Iterator[bytes], content_type: str) -> None:
        """Send a response in chunks, each as soon as the iterator yields it."""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def address_string(self) -> str:
        return "127.0.0.1"


class Server(ThreadingHTTPServer):
    """A TCP service. Its port is bound immediately, but refuses connections until `start` or `run` is called."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, handler: type[Handler], owner: Any, *, host: str = "127.0.0.1") -> None:
        self.owner = owner
        self._serving = False
        super().__init__((host, port), handler, bind_and_activate=False)
        try:
            self.server_bind()
        except OSError:
            self.server_close()
            raise

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Serve in a thread."""
        self.server_activate()
        self._serving = True
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Stop serving, if started, and close the socket."""
        if self._serving:
            self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback, except for connection errors: a gateway under load resets thousands of idle connections."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def run(self) -> None:
        """Serve until killed."""
        self.server_activate()
        self.serve_forever()


class UnixServer(ThreadingMixIn, UnixStreamServer):
    """A service on a unix socket."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, handler: type[Handler], owner: Any) -> None:
        self.owner = owner
        path.unlink(missing_ok=True)
        super().__init__(str(path), handler)

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("127.0.0.1", 0)

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

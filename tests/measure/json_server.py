"""An HTTP server on the loopback that answers with JSON."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: returns status and payload for a path and the JSON body of a request; the body of a GET is None, bytes are sent as they are
Answer = Callable[[str, Any], tuple[int, Any]]


@contextlib.contextmanager
def json_server(answer: Answer) -> Iterator[str]:
    """Run a server and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            status, payload = answer(self.path, json.loads(self.rfile.read(size)) if size else None)
            data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            with contextlib.suppress(BrokenPipeError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

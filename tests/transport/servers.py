"""Servers on loopback or a unix socket with given answers, one per connection."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

#: answers one connection, which an OSError ends
Script = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def with_body(body: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_head(connection: socket.socket) -> bytes:
    """Read a request up to the end of its header fields; in other protocols a line."""
    head = b""
    while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
        head += piece
        if b" HTTP/1" not in head and head.endswith(b"\n"):
            break
    return head


def send_script(raw: bytes, heads: list[bytes] | None = None) -> Script:
    """Read the request and send some bytes. heads: to which the request is appended."""

    def script(connection: socket.socket) -> None:
        head = read_head(connection)
        if heads is not None:
            heads.append(head)
        connection.sendall(raw)

    return script


def drip_script(raw: bytes, piece: bytes = b"a", *, every_s: float = 0.02, pieces: int = 400) -> Script:
    """Send some bytes, then pieces at intervals. It closes after a number of pieces, so that a client without a deadline returns."""

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(raw)
        pause = threading.Event()
        for _ in range(pieces):
            connection.sendall(piece)
            pause.wait(every_s)

    return script


class Server:
    def __init__(self, script: Script, *, path: Path | None = None, context: ssl.SSLContext | None = None) -> None:
        self.script, self.context = script, context
        self.connections = 0
        #: set when a client closed the connection while the server was still sending
        self.left = threading.Event()
        self._listening = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listening.bind(str(path) if path else ("127.0.0.1", 0))
        self._listening.listen(16)
        self.port = 0 if path else self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}/"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listening.accept()[0]
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self.context is None:
                    self.script(connection)
                    return
                with self.context.wrap_socket(connection, server_side=True) as secured:
                    self.script(secured)
                    with contextlib.suppress(OSError):
                        secured.unwrap()
            except OSError:
                self.left.set()

    def close(self) -> None:
        self._listening.close()


@contextlib.contextmanager
def serving(script: Script, *, path: Path | None = None, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(script, path=path, context=context)
    try:
        yield server
    finally:
        server.close()

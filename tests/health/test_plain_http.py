"""One GET over a socket, asked of real sockets: what servers send, and what broken ones do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.host import plain_http
from sparkwright.trust.bounds import TooMuch

ANSWERS = {
    "by its length": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodyrest", (200, b"body")),
    "until it is closed": (b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\nbody", (200, b"body")),
    "in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nbod\r\n1\r\ny\r\n0\r\n\r\n",
        (200, b"body"),
    ),
    "empty": (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", (503, b"")),
    "without a reason": (b"HTTP/1.1 204\r\n\r\n", (204, b"")),
}
BROKEN: dict[str, tuple[bytes, type[Exception]]] = {
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ValueError),
    "nothing": (b"", ConnectionResetError),
    "half a header": (b"HTTP/1.1 200 OK\r\nContent-Le", ConnectionResetError),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody", ConnectionResetError),
    "half a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nbody", ConnectionResetError),
    "a size that is none": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nbody", ConnectionResetError),
    "an endless header": (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 2**18, TooMuch),
    "too much": (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"a" * 9999, TooMuch),
    "too much until it is closed": (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 9999, TooMuch),
}


@pytest.fixture
def server(tmp_path: Path) -> Callable[[Callable[[socket.socket], None]], str]:
    """Serves one connection of a unix socket; returns its path."""

    def serve(answer: Callable[[socket.socket], None]) -> str:
        listening = socket.socket(socket.AF_UNIX)
        path = str(tmp_path / "s")
        listening.bind(path)
        listening.listen(1)

        def one() -> None:
            with listening, listening.accept()[0] as connection:
                assert connection.recv(1000).startswith(b"GET /x HTTP/1.0\r\n")
                answer(connection)

        threading.Thread(target=one, daemon=True).start()
        return path

    return serve


@pytest.mark.parametrize("name", ANSWERS)
def test_what_servers_send_is_read(name: str, server: Callable[[Callable[[socket.socket], None]], str]) -> None:
    raw, read = ANSWERS[name]
    assert plain_http.get(server(lambda connection: connection.sendall(raw)), "/x", timeout_s=10) == read


@pytest.mark.parametrize("name", ANSWERS)
def test_a_byte_at_a_time_is_the_same(name: str, server: Callable[[Callable[[socket.socket], None]], str]) -> None:
    raw, read = ANSWERS[name]

    def drip(connection: socket.socket) -> None:
        for n in range(len(raw)):
            connection.sendall(raw[n : n + 1])

    assert plain_http.get(server(drip), "/x", timeout_s=10) == read


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_answer_is_an_error(name: str, server: Callable[[Callable[[socket.socket], None]], str]) -> None:
    raw, error = BROKEN[name]

    def send(connection: socket.socket) -> None:
        try:
            connection.sendall(raw)
        except OSError:
            return  # it has hung up already

    with pytest.raises(error):
        plain_http.get(server(send), "/x", timeout_s=10, most_bytes=5000)


def test_an_answer_that_drips_ends_at_the_deadline(server: Callable[[Callable[[socket.socket], None]], str]) -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b"a")
        except OSError:
            return

    with pytest.raises(TimeoutError):
        plain_http.get(server(drip), "/x", timeout_s=0.3)
    over.set()


def test_a_server_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    """Docker's socket, asked by many at once: Python's own timeout would make a refusal of it."""
    path, said = str(tmp_path / "s"), list[object]()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as waiting:
        listening.bind(path)
        listening.listen(0)
        waiting.connect(path)
        asking = threading.Thread(target=lambda: said.append(plain_http.get(path, "/x", timeout_s=30)))
        asking.start()
        listening.accept()[0].close()
        connection = listening.accept()[0]
        assert connection.recv(1000)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        connection.close()
        asking.join()
    assert said == [(200, b"")]


def test_a_server_that_never_takes_the_connection_is_a_timeout(tmp_path: Path) -> None:
    path, begun_s = str(tmp_path / "s"), time.monotonic()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as waiting:
        listening.bind(path)
        listening.listen(0)
        waiting.connect(path)
        with pytest.raises(TimeoutError):
            plain_http.get(path, "/x", timeout_s=0.2)
    assert time.monotonic() - begun_s >= 0.2

"""A port for both TLS and plain HTTP, each with its own server behind it, like that of a hub behind a careless proxy."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.certificate import write_self_signed

TLS_HANDSHAKE = b"\x16"


@contextmanager
def two_faced(folder: Path) -> Iterator[tuple[int, Path, dict[bool, int]]]:
    """Yield the port, its certificate, and the ports of the servers behind it (True: for TLS), which the caller fills in."""
    certificate, key = write_self_signed(folder)
    pem = folder / "two-faced.pem"
    pem.write_bytes(key.read_bytes() + certificate.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    backends: dict[bool, int] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, backends), daemon=True).start()
        yield listener.getsockname()[1], pem, backends
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext, backends: dict[bool, int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            args = (listener.accept()[0], context, backends)
            threading.Thread(target=_handle_connection, args=args, daemon=True).start()


def _handle_connection(connection: socket.socket, context: ssl.SSLContext, backends: dict[bool, int]) -> None:
    with contextlib.suppress(OSError), connection:
        tls = connection.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE
        inner = context.wrap_socket(connection, server_side=True) if tls else connection
        with inner, socket.create_connection(("127.0.0.1", backends[tls])) as server:
            back = threading.Thread(target=_pump, args=(server, inner), daemon=True)
            back.start()
            _pump(inner, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)

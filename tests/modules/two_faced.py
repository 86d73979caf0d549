"""One port that speaks TLS and plain HTTP, as a hub behind a careless proxy does: each way leads to a server of its own."""

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
    """The port, the certificate, and by whether it is TLS the port of the server behind, to be filled in."""
    certificate = _certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    backends: dict[bool, int] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, backends), daemon=True).start()
        yield listener.getsockname()[1], certificate, backends
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext, backends: dict[bool, int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(
                target=_handle_connection, args=(listener.accept()[0], context, backends), daemon=True
            ).start()


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


def _certificate(folder: Path) -> Path:
    """Certificate and key in one file, for 127.0.0.1."""
    certificate, key = write_self_signed(folder)
    path = folder / "two-faced.pem"
    path.write_bytes(key.read_bytes() + certificate.read_bytes())
    return path

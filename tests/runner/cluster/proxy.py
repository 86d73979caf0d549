"""A simulated cable between two hosts: it forwards bytes until it is cut, which closes no connection."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Cable:
    """Listens on `port` of 127.0.0.1 and forwards to another port. recorded: the bytes to the head, by connection."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.recorded: list[bytearray] = []
        self._cut = threading.Event()
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Stop forwarding: from now on nothing arrives on the other side."""
        self._cut.set()

    def close(self) -> None:
        for item in self._open:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                self.recorded.append(bytearray())
                threading.Thread(target=self._forward, args=(near, far, self.recorded[-1]), daemon=True).start()
                threading.Thread(target=self._forward, args=(far, near, bytearray()), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, recorded: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._cut.is_set():
                    recorded += data
                    target.sendall(data)
            if not self._cut.is_set():
                target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def open_cable(to: int) -> Iterator[Cable]:
    value = Cable(to)
    try:
        yield value
    finally:
        value.close()

"""A non-blocking connection between two runs: lines, keep-alives and a timeout."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from sparkwright.host.cluster.wire import LINE_BYTES, Lines, Session, WireError
from sparkwright.protocol.cluster import SILENT
from sparkwright.ready import readable

READ_BYTES = 64 * 2**10
#: a member with this much unread data counts as lost
OUT_BYTES = 16 * 2**20
CLOSED = "connection closed"
ALIVE = {"kind": "alive"}


class Lost(Exception):
    """The connection to the other side is lost; the message says how."""


class Connection:
    """A connection to another member's run: buffered lines in both directions, and keep-alives.

    Args:
        beat_s: seconds between two keep-alives.
        session: None until both sides have authenticated.
    """

    def __init__(self, sock: socket.socket, beat_s: float, session: Session | None = None) -> None:
        self.sock, self.session = sock, session
        self._beat_s = beat_s
        self._lines = Lines()
        self._out = bytearray()
        self.opened_s = self._heard_s = self._wrote_s = time.monotonic()
        sock.setblocking(False)
        if session is not None:
            self.trust(session)

    def fileno(self) -> int:
        """Return the socket's file descriptor, for a selector."""
        return self.sock.fileno()

    def trust(self, session: Session) -> None:
        """Switch to an authenticated session: the other side has proved its identity."""
        self.session, self._lines.most_bytes = session, LINE_BYTES
        _keep_alive(self.sock, self._silent_s)

    def read(self) -> Iterator[bytes]:
        """Yield the lines that have arrived. Raises Lost if the connection is closed, WireError for a line that is too long."""
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise Lost(_how(error)) from None
        if not data:
            raise Lost(CLOSED)
        self._heard_s = time.monotonic()
        yield from self._lines.feed(data)

    def say(self, message: dict[str, Any]) -> None:
        """Queue a message and send as much as the other side accepts. Raises Lost."""
        assert self.session is not None
        self.put(self.session.seal(message))

    def put(self, line: bytes) -> None:
        """Queue a line and send as much as the other side accepts. Raises Lost."""
        self._out += line
        if len(self._out) > OUT_BYTES:
            raise Lost("it reads nothing")
        self._wrote_s = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send queued data, as much as the other side accepts. Raises Lost."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out[:READ_BYTES])]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise Lost(_how(error)) from None

    @property
    def waiting(self) -> bool:
        """Return True if unsent data is left."""
        return bool(self._out)

    def beat(self) -> None:
        """Send a keep-alive if it is due. Raises Lost if the other side has been silent for too long."""
        now_s = time.monotonic()
        if now_s - self._heard_s > self._silent_s and not self._unread():
            raise Lost(f"no word for {self._silent_s:g} s")
        if now_s - self._wrote_s >= self._beat_s and not self._out:
            self.say(ALIVE)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()

    @property
    def _silent_s(self) -> float:
        return self._beat_s * SILENT

    def _unread(self) -> bool:
        """Return True if unread data has arrived: this process itself may have been suspended."""
        return bool(readable([self.sock]))


def line_of(sock: socket.socket, most_bytes: int, until_s: float) -> bytes:
    """Read one line from a blocking socket. Raises OSError, WireError or Lost.

    Args:
        until_s: the deadline, by time.monotonic.
    """
    found = bytearray()
    while not found.endswith(b"\n"):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer")
        sock.settimeout(left_s)
        byte = sock.recv(1)  # not a byte beyond the line: the rest belongs to the session
        if not byte:
            raise Lost(CLOSED)
        found += byte
        if len(found) > most_bytes:
            raise WireError(f"a line has more than {most_bytes} bytes")
    return bytes(found[:-1])


def _keep_alive(sock: socket.socket, silent_s: float) -> None:
    """Enable TCP keep-alive: the kernel watches the connection even while this process is busy."""
    seconds = max(1, round(silent_s / SILENT))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", SILENT)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _how(error: OSError) -> str:
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return CLOSED  # closed with unread data
    return (error.strerror or str(error) or type(error).__name__).lower()

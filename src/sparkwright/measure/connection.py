"""Connections to a server, with a deadline for all reads."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import time
from typing import Any, cast
from urllib.parse import urlsplit

from sparkwright.transport.connection import Connection, Deadline, TimedOut, TransportError


class _Socket(socket.socket):
    """A socket whose reads end at a deadline, however slowly the peer sends, and take one system call each.

    `until_s` is a time of time.perf_counter, and `silence_s` the longest wait. The kernel enforces the timeout, because
    Python's own timeouts poll first and every extra call may wait for the GIL among many threads. The clock is checked again
    afterwards, because a kernel that was itself delayed (in a virtual machine waiting for its CPU) wakes us too early.
    """

    until_s = float("inf")
    silence_s = 30.0

    def waits(self, silence_s: float) -> None:
        """Set the longest wait of a send or a receive."""
        self.silence_s = silence_s
        self.setblocking(True)
        self._waits(socket.SO_SNDTIMEO, silence_s)
        self._waits(socket.SO_RCVTIMEO, silence_s)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        while (left_s := self.until_s - time.perf_counter()) > 0:
            last = left_s < self.silence_s
            if last:
                self._waits(socket.SO_RCVTIMEO, left_s)
            try:
                return super().recv_into(*args, **kwargs)
            except BlockingIOError:
                if not last:
                    break
        raise TimeoutError

    def _waits(self, which: int, seconds: float) -> None:
        full, part = divmod(max(seconds, 1e-6), 1)
        self.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", int(full), int(part * 1e6) + 1))


class _TlsSocket(ssl.SSLSocket):
    """The same with TLS, where the clock is checked before each read and Python enforces the timeout."""

    until_s = float("inf")
    silence_s = 30.0

    def waits(self, silence_s: float) -> None:
        """Set the longest wait of a send or a receive."""
        self.silence_s = silence_s
        self.settimeout(silence_s)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left_s = self.until_s - time.perf_counter()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(min(left_s, self.silence_s))
        return super().recv_into(*args, **kwargs)


def connect(base_url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return an open connection without Nagle's delay.

    Name lookup, connecting and the handshake together take at most timeout_s.

    Raises:
        OSError: including TimeoutError.
    """
    where, deadline = urlsplit(base_url), Deadline(timeout_s)
    secure = where.scheme == "https"
    host, port = where.hostname or "127.0.0.1", where.port or (443 if secure else 80)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        plain = Connection.tcp(host, port, deadline).detach()
        sock = _secured(plain, host, deadline) if secure else _Socket(fileno=plain.detach())
    except TimedOut as error:
        raise TimeoutError(str(error)) from None
    except TransportError as error:
        raise getattr(error, "error", None) or OSError(str(error)) from None
    sock.waits(timeout_s)
    connection.sock = sock
    return connection


def _secured(plain: socket.socket, host: str, deadline: Deadline) -> _TlsSocket:
    """Return the socket with TLS. Raises OSError or TimedOut."""
    context = ssl.create_default_context()
    context.sslsocket_class = _TlsSocket
    try:
        plain.settimeout(deadline.left_s())
        return cast(_TlsSocket, context.wrap_socket(plain, server_hostname=host))
    except BaseException:
        plain.close()
        raise


def ends(connection: http.client.HTTPConnection, until_s: float) -> None:
    """End all reads at until_s, a time of time.perf_counter."""
    if isinstance(connection.sock, _Socket | _TlsSocket):
        connection.sock.until_s = until_s

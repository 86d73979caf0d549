"""A connection to a server, whose reads end at a deadline."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import time
from typing import Any
from urllib.parse import urlsplit


class _Socket(socket.socket):
    """Reads end at a deadline, however slowly the other side drips, and cost one system call each.

    until_s: by time.perf_counter. silence_s: the longest wait. The kernel keeps the time: Python's own timeouts poll first, and
    each call more is another wait for the interpreter's lock among many threads. The clock has the last word: a kernel whose
    own was held up (a virtual machine waiting for its processor) wakes us before the deadline.
    """

    until_s = float("inf")
    silence_s = 30.0

    def waits(self, silence_s: float) -> None:
        """The longest wait of a send or a receive."""
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


def connect(base_url: str, timeout_s: float) -> http.client.HTTPConnection:
    """An open connection without Nagle's delay. Raises OSError."""
    where = urlsplit(base_url)
    secure = where.scheme == "https"
    host, port = where.hostname or "127.0.0.1", where.port or (443 if secure else 80)
    plain = socket.create_connection((host, port), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if secure:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=timeout_s)
        connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        return connection
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    connection.sock = _Socket(fileno=plain.detach())
    connection.sock.waits(timeout_s)
    return connection


def ends(connection: http.client.HTTPConnection, until_s: float) -> None:
    """No read goes on after until_s, by time.perf_counter. With TLS, which knows no deadline, each has its own timeout."""
    if isinstance(connection.sock, _Socket):
        connection.sock.until_s = until_s

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
    """A socket whose reads take one system call each and end at a deadline, however slowly the peer sends.

    The kernel enforces the timeout, because Python's own timeouts poll first and every extra call may wait for the GIL among
    many threads. The clock is checked again afterwards, because a delayed kernel (in a virtual machine waiting for its CPU) ends
    the wait too early.
    """

    #: time of time.perf_counter after which reads fail
    deadline_s = float("inf")
    #: longest wait for data
    silence_s = 30.0

    def set_timeout(self, silence_s: float) -> None:
        """Set the longest wait of a send or a receive."""
        self.silence_s = silence_s
        self.setblocking(True)
        self._set_timeout_option(socket.SO_SNDTIMEO, silence_s)
        self._set_timeout_option(socket.SO_RCVTIMEO, silence_s)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        while (remaining_s := self.deadline_s - time.perf_counter()) > 0:
            is_last_wait = remaining_s < self.silence_s
            if is_last_wait:
                self._set_timeout_option(socket.SO_RCVTIMEO, remaining_s)
            try:
                return super().recv_into(*args, **kwargs)
            except BlockingIOError:
                if not is_last_wait:
                    break
        raise TimeoutError

    def _set_timeout_option(self, option: int, seconds: float) -> None:
        full_seconds, fraction = divmod(max(seconds, 1e-6), 1)
        self.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(full_seconds), int(fraction * 1e6) + 1))


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket with a deadline, which is checked before each read; Python enforces the timeout."""

    deadline_s = float("inf")
    silence_s = 30.0

    def set_timeout(self, silence_s: float) -> None:
        """Set the longest wait of a send or a receive."""
        self.silence_s = silence_s
        self.settimeout(silence_s)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        remaining_s = self.deadline_s - time.perf_counter()
        if remaining_s <= 0:
            raise TimeoutError
        self.settimeout(min(remaining_s, self.silence_s))
        return super().recv_into(*args, **kwargs)


def connect(base_url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return an open connection with TCP_NODELAY.

    `timeout_s` limits the total of name lookup, connecting and handshake, and later each wait for data.

    Raises:
        OSError: including TimeoutError.
    """
    url, deadline = urlsplit(base_url), Deadline(timeout_s)
    is_tls = url.scheme == "https"
    host, port = url.hostname or "127.0.0.1", url.port or (443 if is_tls else 80)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        tcp_socket = Connection.tcp(host, port, deadline).detach()
        sock = _wrap_tls(tcp_socket, host, deadline) if is_tls else _Socket(fileno=tcp_socket.detach())
    except TimedOut as error:
        raise TimeoutError(str(error)) from None
    except TransportError as error:
        raise getattr(error, "error", None) or OSError(str(error)) from None
    sock.set_timeout(timeout_s)
    connection.sock = sock
    return connection


def _wrap_tls(tcp_socket: socket.socket, host: str, deadline: Deadline) -> _TlsSocket:
    context = ssl.create_default_context()
    context.sslsocket_class = _TlsSocket
    try:
        tcp_socket.settimeout(deadline.remaining_s())
        return cast(_TlsSocket, context.wrap_socket(tcp_socket, server_hostname=host))
    except BaseException:
        tcp_socket.close()
        raise


def set_read_deadline(connection: http.client.HTTPConnection, deadline_s: float) -> None:
    """Make all reads fail after `deadline_s`, a time of time.perf_counter."""
    if isinstance(connection.sock, _Socket | _TlsSocket):
        connection.sock.deadline_s = deadline_s

"""One GET and its answer over a socket, for what a host asks at every `status`.

http.client imports email and ssl, 30 ms of the 120 that such an answer may cost. HTTP/1.0 has no more to it than what is read
here: an answer ends where its length says, or with its connection.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator

from sparkwright.trust.bounds import ANSWER_BYTES, TooMuch

#: of a status line and header fields
HEAD_BYTES = 64 * 1024
PIECE_BYTES = 1 << 16
_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5][0-9][0-9])(?:[ \r\n])")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r?\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE)  # by a server that takes no heed of 1.0
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[^\r\n]*\r\n")

#: the path of a unix socket, or (host, port)
Address = str | tuple[str, int]


def get(address: Address, path: str, *, timeout_s: float, most_bytes: int = ANSWER_BYTES) -> tuple[int, bytes]:
    """Status and body, all within timeout_s.

    Raises OSError (TimeoutError among them), ValueError for what is no HTTP, TooMuch for what is too large.
    """
    until_s = time.monotonic() + timeout_s
    with _asked(address, path, until_s) as connection:
        head, rest = _head(connection, until_s)
        return _status(head), _body(connection, head, rest, most_bytes, until_s)


def head(address: Address, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """Status and header fields of an answer, whose body has come too. Raises as `get` does."""
    until_s = time.monotonic() + timeout_s
    with _asked(address, path, until_s) as connection:
        fields, rest = _head(connection, until_s)
        _body(connection, fields, rest, HEAD_BYTES, until_s)
        return _status(fields), fields


def pieces(address: Address, path: str, *, timeout_s: float) -> tuple[int, Iterator[bytes]]:
    """Status, and the body as it comes, to the connection's end; each piece comes within timeout_s.

    Raises as `get` does, ValueError also for a body in chunks; its pieces raise OSError.
    """
    until_s = time.monotonic() + timeout_s
    connection = _asked(address, path, until_s)
    try:
        fields, rest = _head(connection, until_s)
        status = _status(fields)
        if _CHUNKED.search(fields):
            raise ValueError("comes in chunks")
    except BaseException:
        connection.close()
        raise
    return status, _as_it_comes(connection, rest, timeout_s)


def _as_it_comes(connection: socket.socket, piece: bytes, timeout_s: float) -> Iterator[bytes]:
    with connection:
        if piece:
            yield piece
        while piece := _piece(connection, time.monotonic() + timeout_s):
            yield piece


def _asked(address: Address, path: str, until_s: float) -> socket.socket:
    """A connection that the question has gone out on."""
    if isinstance(address, str):
        connection = _unix(address, until_s)
    else:
        connection = socket.create_connection(address, _left(until_s))
    try:
        connection.settimeout(_left(until_s))
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    except BaseException:
        connection.close()
        raise
    return connection


def _unix(path: str, until_s: float) -> socket.socket:
    """A connection to a unix socket. One whose queue is full is waited for, as TCP does: Python's own timeouts refuse it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        full, part = divmod(_left(until_s), 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(full), int(part * 1e6) + 1))
        connection.connect(path)
    except BlockingIOError:
        connection.close()
        raise TimeoutError from None
    except BaseException:
        connection.close()
        raise
    return connection


def _head(connection: socket.socket, until_s: float) -> tuple[bytes, bytes]:
    """Status line and header fields, and what has come of the body."""
    raw = b""
    while not (end := _END.search(raw)):
        if len(raw) > HEAD_BYTES:
            raise TooMuch(f"has a header of more than {HEAD_BYTES} bytes")
        raw += _piece(connection, until_s) or _cut_off()
    return raw[: end.end()], raw[end.end() :]


def _status(head: bytes) -> int:
    found = _STATUS.match(head)
    if not found:
        raise ValueError("is no HTTP")
    return int(found[1])


def _body(connection: socket.socket, head: bytes, rest: bytes, most_bytes: int, until_s: float) -> bytes:
    chunked, declared = _CHUNKED.search(head), _LENGTH.search(head)
    length = int(declared[1]) if declared and not chunked else None
    pieces, size, piece = [rest], len(rest), b" "
    while piece and (length is None or size < length <= most_bytes) and size <= most_bytes:
        piece = _piece(connection, until_s) or (_cut_off() if length else b"")
        pieces.append(piece)
        size += len(piece)
    if max(size, length or 0) > most_bytes:
        raise TooMuch(f"has more than {most_bytes} bytes")
    body = b"".join(pieces)
    return _joined(body) if chunked else body[:length]


def _joined(raw: bytes) -> bytes:
    """The chunks of a body."""
    pieces: list[bytes] = []
    at = 0
    while found := _CHUNK.match(raw, at):
        size = int(found[1], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(raw[found.end() : found.end() + size])
        at = found.end() + size + 2
    return _cut_off()


def _piece(connection: socket.socket, until_s: float) -> bytes:
    connection.settimeout(_left(until_s))
    return connection.recv(PIECE_BYTES)


def _left(until_s: float) -> float:
    """Seconds until then. Raises TimeoutError when there are none."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _cut_off() -> bytes:
    raise ConnectionResetError("the answer ended early")

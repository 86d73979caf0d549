"""The wire protocol between the runs of a cluster's members: authenticated lines of JSON over a non-blocking connection."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from sparkwright.protocol.cluster import SILENT, Cluster
from sparkwright.ready import readable
from sparkwright.secret import Secret
from sparkwright.trust import bounds, shapes

VERSION = "sparkwright cluster 2"
LINE_BYTES = 64 * 2**10
#: limit of a line before authentication
HELLO_BYTES = 1024
DEPTH = 16
HEAD, MEMBER = "head", "member"

_HEX = re.compile(r"[0-9a-f]{64}")
_GREETING = {"hello": frozenset((VERSION,)), "nonce": _HEX}
_CLAIM = {"rank": shapes.integer, "nonce": _HEX, "proof": _HEX}
_PROOF = {"proof": _HEX}


class WireError(ValueError):
    """A line that a member of this deploy would not write; the message is the end of a sentence."""


class Lines:
    """A splitter of received bytes into lines.

    Args:
        most_bytes: of one line; may be raised between two lines.
    """

    def __init__(self, most_bytes: int = HELLO_BYTES) -> None:
        self.most_bytes = most_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete now. Raises WireError for one that is too long."""
        self._rest += data
        while (end := self._rest.find(b"\n")) >= 0:
            if end > self.most_bytes:
                break
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            yield line
        if len(self._rest) > self.most_bytes and not 0 <= self._rest.find(b"\n") <= self.most_bytes:
            self._rest.clear()
            raise WireError(f"a line has more than {self.most_bytes} bytes")


class Session:
    """An authenticated connection's lines, in both directions.

    Args:
        side: HEAD or MEMBER.
    """

    def __init__(self, token: Secret, handshake: Handshake, side: str) -> None:
        self._out, self._in = (handshake.keyed(token, f"lines of the {item}") for item in (side, _other(side)))
        self._sent = self._received = 0

    def seal(self, message: dict[str, Any]) -> bytes:
        """Return a message as an authenticated line. Raises WireError if it is too long."""
        body = _json({**message, "n": self._sent + 1})
        line = hmac.digest(self._out, body, "sha256").hex().encode() + b" " + body
        if len(line) > LINE_BYTES:
            raise WireError(f"a line has more than {LINE_BYTES} bytes")
        self._sent += 1
        return line + b"\n"

    def opened(self, line: bytes) -> dict[str, Any]:
        """Authenticate the next line and return its message. Raises WireError for a forged, repeated or missing line."""
        mac, _, body = line.partition(b" ")
        if not hmac.compare_digest(mac, hmac.digest(self._in, body, "sha256").hex().encode()):
            raise WireError("a line is not authentic")
        message = _object(body, DEPTH)
        if message.pop("n", None) != self._received + 1:
            raise WireError("a line is repeated or missing")
        self._received += 1
        return message


class Handshake:
    """The handshake of a connection: the source of both sides' proofs and of the keys for their lines.

    Args:
        nonce: the head's nonce.
        rank: the member's rank.
        answer: the member's nonce.
    """

    def __init__(self, cluster: Cluster, nonce: str, rank: int, answer: str) -> None:
        self._about = [VERSION, cluster.name, list(cluster.members), nonce, rank, answer]

    def keyed(self, token: Secret, what: str) -> bytes:
        """Return a value of this connection that only holders of the token can compute."""
        return hmac.digest(token.reveal().encode(), _json([what, *self._about]), "sha256")

    def proof(self, token: Secret, side: str) -> str:
        """Return a side's proof that it knows the token."""
        return self.keyed(token, f"proof of the {side}").hex()


def named(cluster: Cluster, token: Secret) -> str:
    """Return a name for the runs that share this token."""
    about = _json([VERSION, "name", cluster.name, list(cluster.members)])
    return hmac.digest(token.reveal().encode(), about, "sha256").hex()[:12]


def fresh_nonce() -> str:
    """Return a new nonce."""
    return os.urandom(32).hex()


def greeting(nonce: str) -> bytes:
    """Return the head's first line."""
    return _json({"hello": VERSION, "nonce": nonce}) + b"\n"


def claim(greeted: bytes, cluster: Cluster, token: Secret) -> tuple[bytes, Handshake]:
    """Return a member's answer to the head's first line, and its handshake. Raises WireError."""
    nonce, answer = _shaped(greeted, _GREETING)["nonce"], fresh_nonce()
    handshake = Handshake(cluster, nonce, cluster.rank, answer)
    line = {"rank": cluster.rank, "nonce": answer, "proof": handshake.proof(token, MEMBER)}
    return _json(line) + b"\n", handshake


def claimed(line: bytes, nonce: str, cluster: Cluster, token: Secret) -> tuple[int, bytes, Session]:
    """Return the rank of an authenticated member, the head's proof for it, and their session. Raises WireError."""
    found = _shaped(line, _CLAIM)
    handshake = Handshake(cluster, nonce, found["rank"], found["nonce"])
    if not hmac.compare_digest(found["proof"], handshake.proof(token, MEMBER)):
        raise WireError("it has another token")
    if not 0 <= found["rank"] < len(cluster.members):
        raise WireError("it has no rank of this cluster")
    proof = _json({"proof": handshake.proof(token, HEAD)}) + b"\n"
    return found["rank"], proof, Session(token, handshake, HEAD)


def proved(line: bytes, handshake: Handshake, token: Secret) -> Session:
    """Return a member's session after verifying the head's proof. Raises WireError."""
    if not hmac.compare_digest(_shaped(line, _PROOF)["proof"], handshake.proof(token, HEAD)):
        raise WireError("it has another token")
    return Session(token, handshake, MEMBER)


def size(data: Any) -> int:
    """Return the size of a value on the wire, in bytes."""
    return len(_json(data))


def _other(side: str) -> str:
    return MEMBER if side == HEAD else HEAD


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(text: bytes, depth: int) -> dict[str, Any]:
    try:
        found = bounds.json_of(text, depth=depth)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WireError("it does not speak the protocol of clusters")
    return found


def _shaped(line: bytes, shape: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = shapes.fitted(_object(line, 2), shape, "")
    except ValueError:
        raise WireError("it does not speak the protocol of clusters") from None
    return found


def derived(token: Secret, purpose: str) -> Secret:
    """Derive a token of 64 hexadecimal digits for one purpose; only holders of the original can do so."""
    return Secret(hmac.digest(token.reveal().encode(), purpose.encode(), "sha256").hex())


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

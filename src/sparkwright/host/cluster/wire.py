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

from sparkwright.protocol.cluster import MAX_MISSED_HEARTBEATS, Cluster
from sparkwright.ready import wait_for_readable
from sparkwright.secret import Secret
from sparkwright.trust import bounds, shapes

PROTOCOL_VERSION = "sparkwright cluster 2"
MAX_LINE_BYTES = 64 * 2**10
#: maximum length of a line before authentication
MAX_HELLO_BYTES = 1024
MAX_DEPTH = 16
READ_BYTES = 64 * 2**10
#: a member with more unsent data is dropped
MAX_UNSENT_BYTES = 16 * 2**20
HEAD, MEMBER = "head", "member"
CLOSED_MESSAGE = "connection closed"
ALIVE_MESSAGE = {"kind": "alive"}

_HEX_PATTERN = re.compile(r"[0-9a-f]{64}")
_GREETING_SHAPE = {"hello": frozenset((PROTOCOL_VERSION,)), "nonce": _HEX_PATTERN}
_CLAIM_SHAPE = {"rank": shapes.integer, "nonce": _HEX_PATTERN, "proof": _HEX_PATTERN}
_PROOF_SHAPE = {"proof": _HEX_PATTERN}


class WireError(ValueError):
    """Data that violates the protocol."""


class LineSplitter:
    """Splits received bytes into lines.

    Args:
        max_bytes: maximum length of a line; may be changed between two lines.
    """

    def __init__(self, max_bytes: int = MAX_HELLO_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the complete lines. Raises WireError for a line that is too long."""
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            if end > self.max_bytes:
                break
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            yield line
        if len(self._buffer) > self.max_bytes and not 0 <= self._buffer.find(b"\n") <= self.max_bytes:
            self._buffer.clear()
            raise WireError(f"a line has more than {self.max_bytes} bytes")


class Session:
    """Authenticates the lines of a connection in both directions after the handshake.

    Args:
        side: this side, HEAD or MEMBER.
    """

    def __init__(self, token: Secret, handshake: Handshake, side: str) -> None:
        peer = MEMBER if side == HEAD else HEAD
        self._sending_key, self._receiving_key = (
            handshake.derive_key(token, f"lines of the {sender}") for sender in (side, peer)
        )
        self._sent_count = self._received_count = 0

    def seal(self, message: dict[str, Any]) -> bytes:
        """Return a message as an authenticated line. Raises WireError if it is too long."""
        body = _encode({**message, "n": self._sent_count + 1})
        line = hmac.digest(self._sending_key, body, "sha256").hex().encode() + b" " + body
        if len(line) > MAX_LINE_BYTES:
            raise WireError(f"a line has more than {MAX_LINE_BYTES} bytes")
        self._sent_count += 1
        return line + b"\n"

    def unseal(self, line: bytes) -> dict[str, Any]:
        """Return the message in the next line. Raises WireError if a line is forged, repeated or missing."""
        mac, _, body = line.partition(b" ")
        if not hmac.compare_digest(mac, hmac.digest(self._receiving_key, body, "sha256").hex().encode()):
            raise WireError("a line is not authentic")
        message = _decode_object(body, MAX_DEPTH)
        if message.pop("n", None) != self._received_count + 1:
            raise WireError("a line is repeated or missing")
        self._received_count += 1
        return message


class Handshake:
    """The identity of one connection, from which proofs and keys are derived.

    Args:
        nonce: the head's nonce.
        rank: the member's rank.
        member_nonce: the member's nonce.
    """

    def __init__(self, cluster: Cluster, nonce: str, rank: int, member_nonce: str) -> None:
        self._identity = [PROTOCOL_VERSION, cluster.name, list(cluster.members), nonce, rank, member_nonce]

    def derive_key(self, token: Secret, purpose: str) -> bytes:
        """Return a key for this connection and purpose, which cannot be computed without the token."""
        return hmac.digest(token.reveal().encode(), _encode([purpose, *self._identity]), "sha256")

    def proof(self, token: Secret, side: str) -> str:
        """Return the proof that a side, HEAD or MEMBER, has the token."""
        return self.derive_key(token, f"proof of the {side}").hex()


def derive_generation(cluster: Cluster, token: Secret) -> str:
    """Return the id that is common to the runs with this token."""
    identity = _encode([PROTOCOL_VERSION, "name", cluster.name, list(cluster.members)])
    return hmac.digest(token.reveal().encode(), identity, "sha256").hex()[:12]


def generate_nonce() -> str:
    """Return 32 random bytes in hexadecimal."""
    return os.urandom(32).hex()


def build_greeting(nonce: str) -> bytes:
    """Return the first line of a connection, which the head sends."""
    return _encode({"hello": PROTOCOL_VERSION, "nonce": nonce}) + b"\n"


def answer_greeting(greeting_line: bytes, cluster: Cluster, token: Secret) -> tuple[bytes, Handshake]:
    """Return the member's claim in answer to the greeting, and its handshake. Raises WireError."""
    nonce, member_nonce = _decode_line(greeting_line, _GREETING_SHAPE)["nonce"], generate_nonce()
    handshake = Handshake(cluster, nonce, cluster.rank, member_nonce)
    claim = {"rank": cluster.rank, "nonce": member_nonce, "proof": handshake.proof(token, MEMBER)}
    return _encode(claim) + b"\n", handshake


def verify_claim(line: bytes, nonce: str, cluster: Cluster, token: Secret) -> tuple[int, bytes, Session]:
    """Authenticate a member's claim. Returns its rank, the head's proof to send, and the session. Raises WireError."""
    fields = _decode_line(line, _CLAIM_SHAPE)
    handshake = Handshake(cluster, nonce, fields["rank"], fields["nonce"])
    if not hmac.compare_digest(fields["proof"], handshake.proof(token, MEMBER)):
        raise WireError("it has another token")
    if not 0 <= fields["rank"] < len(cluster.members):
        raise WireError("its rank is not in this cluster")
    proof = _encode({"proof": handshake.proof(token, HEAD)}) + b"\n"
    return fields["rank"], proof, Session(token, handshake, HEAD)


def verify_proof(line: bytes, handshake: Handshake, token: Secret) -> Session:
    """Verify the head's proof. Returns the member's session. Raises WireError."""
    if not hmac.compare_digest(_decode_line(line, _PROOF_SHAPE)["proof"], handshake.proof(token, HEAD)):
        raise WireError("it has another token")
    return Session(token, handshake, MEMBER)


def encoded_size(data: Any) -> int:
    """Return the size of a value on the wire, in bytes."""
    return len(_encode(data))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _decode_object(text: bytes, depth: int) -> dict[str, Any]:
    try:
        data = bounds.parse_json(text, max_depth=depth)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise WireError("it does not use the cluster protocol")
    return data


def _decode_line(line: bytes, shape: dict[str, Any]) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = shapes.validate(_decode_object(line, 2), shape, "")
    except ValueError:
        raise WireError("it does not use the cluster protocol") from None
    return fields


def derive_token(token: Secret, purpose: str) -> Secret:
    """Derive a token of 64 hexadecimal digits for one purpose, which cannot be computed without the original token."""
    return Secret(hmac.digest(token.reveal().encode(), purpose.encode(), "sha256").hex())


class ConnectionLost(Exception):
    """The connection to the other side is lost, for the reason in the message."""


class Connection:
    """A non-blocking connection between the head and a member, with buffered lines and keep-alives.

    Args:
        beat_s: seconds between keep-alives.
        session: None until both sides have authenticated.
    """

    def __init__(self, sock: socket.socket, beat_s: float, session: Session | None = None) -> None:
        self.sock, self.session = sock, session
        self._beat_s = beat_s
        self._lines = LineSplitter()
        self._unsent = bytearray()
        self.opened_s = self._last_received_s = self._last_sent_s = time.monotonic()
        sock.setblocking(False)
        if session is not None:
            self.start_session(session)

    def fileno(self) -> int:
        """Return the socket's file descriptor, for a selector."""
        return self.sock.fileno()

    def start_session(self, session: Session) -> None:
        """Authenticate all further lines with a session."""
        self.session, self._lines.max_bytes = session, MAX_LINE_BYTES
        _enable_keep_alive(self.sock, self._max_silence_s)

    def read(self) -> Iterator[bytes]:
        """Yield the received lines. Raises ConnectionLost, or WireError for a line that is too long."""
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionLost(_describe_error(error)) from None
        if not data:
            raise ConnectionLost(CLOSED_MESSAGE)
        self._last_received_s = time.monotonic()
        yield from self._lines.feed(data)

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message and send as much as possible without blocking. Raises ConnectionLost."""
        assert self.session is not None
        self.send_line(self.session.seal(message))

    def send_line(self, line: bytes) -> None:
        """Queue a line and send as much as possible without blocking. Raises ConnectionLost."""
        self._unsent += line
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise ConnectionLost("it stopped reading")
        self._last_sent_s = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send as much queued data as possible without blocking. Raises ConnectionLost."""
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent[:READ_BYTES])]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionLost(_describe_error(error)) from None

    @property
    def has_unsent(self) -> bool:
        """Return True if data is queued."""
        return bool(self._unsent)

    def keep_alive(self) -> None:
        """Send a keep-alive if it is due. Raises ConnectionLost if the other side has been silent for too long."""
        now_s = time.monotonic()
        if now_s - self._last_received_s > self._max_silence_s and not self._has_unread():
            raise ConnectionLost(f"silent for {self._max_silence_s:g} s")
        if now_s - self._last_sent_s >= self._beat_s and not self._unsent:
            self.send(ALIVE_MESSAGE)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()

    @property
    def _max_silence_s(self) -> float:
        return self._beat_s * MAX_MISSED_HEARTBEATS

    def _has_unread(self) -> bool:
        """Return True if unread data has arrived, as may be the case after this process was suspended."""
        return bool(wait_for_readable([self.sock]))


def read_line(sock: socket.socket, max_bytes: int, deadline_s: float) -> bytes:
    """Read one line from a blocking socket. Raises OSError, WireError or ConnectionLost.

    Args:
        deadline_s: the deadline, in time.monotonic() seconds.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("no answer")
        sock.settimeout(remaining_s)
        byte = sock.recv(1)  # the bytes after the line belong to the session
        if not byte:
            raise ConnectionLost(CLOSED_MESSAGE)
        line += byte
        if len(line) > max_bytes:
            raise WireError(f"a line has more than {max_bytes} bytes")
    return bytes(line[:-1])


def _enable_keep_alive(sock: socket.socket, max_silence_s: float) -> None:
    """Enable TCP keep-alive, so that the kernel detects a lost connection while this process is busy."""
    seconds = max(1, round(max_silence_s / MAX_MISSED_HEARTBEATS))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", MAX_MISSED_HEARTBEATS)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _describe_error(error: OSError) -> str:
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return CLOSED_MESSAGE  # closed with unread data
    return (error.strerror or str(error) or type(error).__name__).lower()

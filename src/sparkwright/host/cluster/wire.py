"""The wire protocol between the runs of a cluster's members: authenticated lines of JSON.

Both sides prove that they know the deploy's one-time token, with a nonce from each; the token itself is never sent. Every later
line is `MAC JSON`: an HMAC-SHA256 with a key of this connection and direction, over a body that includes a line counter.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from sparkwright.protocol.cluster import Cluster
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

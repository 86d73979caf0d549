"""A byte stream to a server over TCP, TLS or a unix socket, with a single deadline for all waits.

Python's own timeouts apply to each wait, so a server that sends a byte now and then can hold a client forever. Here a single time
budget covers name lookup, connecting, handshake, sending and receiving.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkwright import units

if TYPE_CHECKING:
    import ssl

CHUNK_BYTES = 1 << 16
#: problems of a certificate by OpenSSL's code (X509_V_ERR_ in openssl/x509_vfy.h)
CERTIFICATE_PROBLEMS = {
    9: "is not yet valid",
    10: "has expired",
    **dict.fromkeys((18, 19, 20, 21), "has an unknown issuer"),
    **dict.fromkeys((62, 64), "is for another name"),
}
CLOCK_VERIFY_CODES = (9, 10)
#: maximum number of a name's addresses to try
MAX_ADDRESSES = 8
#: when the kernel probes a silent connection: after this time without a byte, at this interval, this many times
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 4


class TransportError(Exception):
    """Raised for an exchange without a usable answer.

    The message is a predicate of the other side, such as "does not answer within 5 s". It contains no URL, no header and nothing
    that the other side sent.
    """


class TimedOut(TransportError):
    """Raised if the deadline has passed, or if a stream is slower than its minimum rate."""


class ConnectFailed(TransportError):
    """Raised if no connection can be opened: the name is unknown, nothing is listening, or there is no route or permission."""

    def __init__(self, message: str, error: OSError | None = None) -> None:
        super().__init__(message)
        self.error = error  #: the operating system's error, if there is one

    @property
    def refused(self) -> bool:
        """True if nothing is listening at the address."""
        return isinstance(self.error, ConnectionRefusedError | FileNotFoundError)


class ProxyFailed(TransportError):
    """Raised if the proxy in the environment can't be used. The message does not contain its user and password."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final  #: True if a retry can't help: its URL is invalid, or it does not accept the login


class Untrusted(TransportError):
    """Raised if the server's certificate is not the expected one or has no trusted issuer. No request was sent."""

    def __init__(self, message: str, *, depends_on_clock: bool = False) -> None:
        super().__init__(message)
        self.depends_on_clock = depends_on_clock  #: True if the certificate has expired or is not yet valid


class Interrupted(TransportError):
    """Raised if the connection was closed before the answer was complete."""


class InvalidAnswer(TransportError):
    """Raised if the answer violates the protocol."""


class BadRedirect(InvalidAnswer):
    """Raised if a response redirects to an address that must not be followed."""


class TooLarge(InvalidAnswer):
    """Raised if the answer has more bytes than the limit."""

    def __init__(self, message: str, max_bytes: int = 0) -> None:
        super().__init__(message)
        self.max_bytes = max_bytes  #: the limit that was exceeded; 0 for the limit on headers


class InvalidRequest(TransportError):
    """Raised if the request cannot be sent because its URL or a header violates the protocol."""


class InvalidHeader(InvalidRequest):
    """Raised if a header field of the request, such as one with a key, contains characters that HTTP does not allow."""


class TimeLimit(Protocol):
    """A time limit for a connection's waits."""

    def remaining_s(self) -> float:
        """Return the time limit of the next wait in seconds, which is more than 0. Raises TimedOut if no time is left."""

    def record_wait(self, seconds: float, received_bytes: int) -> None:
        """Record the duration of a wait and the number of bytes received."""


class Deadline:
    """A time limit for a whole exchange."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline_s = time.monotonic() + seconds

    def remaining_s(self) -> float:
        """Return the number of seconds until the deadline. Raises TimedOut after it."""
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimedOut(f"does not answer within {self.seconds:g} s")
        return remaining_s

    def record_wait(self, seconds: float, received_bytes: int) -> None:
        """Do nothing: the deadline is fixed."""


@dataclass(frozen=True, slots=True)
class MinimumRate:
    """The minimum rate of a long transfer: `bytes` within `seconds` of waiting."""

    bytes: int
    seconds: float


class ProgressDeadline:
    """A deadline that advances with each part of a transfer.

    Only the time spent waiting for the other side counts, so the reader may take any amount of time.
    """

    def __init__(self, rate: MinimumRate) -> None:
        self.rate = rate
        self._waited_s = 0.0
        self._received_bytes = 0

    def remaining_s(self) -> float:
        """Return the number of seconds until the next part is due. Raises TimedOut after that."""
        if self._waited_s >= self.rate.seconds:
            raise TimedOut(f"sends less than {self.rate.bytes} bytes in {self.rate.seconds:g} s")
        return self.rate.seconds - self._waited_s

    def record_wait(self, seconds: float, received_bytes: int) -> None:
        """Add a wait, and restart the deadline if enough bytes were received."""
        self._waited_s += seconds
        self._received_bytes += received_bytes
        if self._received_bytes >= self.rate.bytes:
            self._waited_s, self._received_bytes = 0.0, 0


@dataclass(frozen=True, slots=True)
class Tls:
    """Requirements for a server's certificate, which is checked before a request is sent."""

    #: False to accept any certificate, for a server whose identity does not matter and to which no secret is sent
    verify: bool = True
    #: hexadecimal SHA-256 of the only certificate to accept, regardless of issuer and name; empty to check issuer and name
    sha256: str = ""


class Connection:
    """An open byte stream.

    Attributes:
        time_limit: the time limit for all waits; may be replaced between two waits.
    """

    def __init__(self, sock: socket.socket, time_limit: TimeLimit) -> None:
        self._socket = sock
        self.time_limit = time_limit

    @classmethod
    def tcp(cls, host: str, port: int, time_limit: TimeLimit, *, keep_alive: bool = False) -> Connection:
        """Connect to the first address of a host that answers.

        Args:
            keep_alive: make the kernel probe a silent connection, to distinguish an unplugged cable from a slow peer.

        Raises:
            TimedOut, ConnectFailed, or InvalidRequest for an invalid host name.
        """
        addresses = _resolve_addresses(host, port, time_limit)[:MAX_ADDRESSES]
        for n, (family, address) in enumerate(addresses):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                # leave time for the other addresses if one is silent
                sock.settimeout(time_limit.remaining_s() / (len(addresses) - n))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if keep_alive:
                    _enable_keepalive(sock)
                return cls(sock, time_limit)
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
        if isinstance(failure, TimeoutError):
            time_limit.remaining_s()
            raise TimedOut("does not answer") from None
        raise ConnectFailed(_describe_error(failure), failure) from None

    @classmethod
    def unix(cls, path: str, time_limit: TimeLimit) -> Connection:
        """Connect to a unix socket. If its queue is full, wait as for TCP; with Python's timeouts, connecting would fail at once.

        Raises:
            TimedOut or ConnectFailed.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            seconds, fraction = divmod(time_limit.remaining_s(), 1)
            timeval = struct.pack("@ll", int(seconds), int(fraction * 1e6) + 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            sock.connect(path)
            return cls(sock, time_limit)
        except BlockingIOError:
            sock.close()
            raise TimedOut("does not answer") from None
        except OSError as error:
            sock.close()
            raise ConnectFailed(_describe_error(error), error) from None
        except BaseException:
            sock.close()
            raise

    def secure(self, host: str, tls: Tls) -> None:
        """Switch to TLS, and verify the server's certificate.

        Raises:
            Untrusted, TimedOut, Interrupted.
        """
        import ssl

        try:
            self._socket.settimeout(self.time_limit.remaining_s())
            tls_socket = _tls_context(tls).wrap_socket(self._socket, server_hostname=host, suppress_ragged_eofs=False)
        except ssl.SSLCertVerificationError as error:
            problem = CERTIFICATE_PROBLEMS.get(error.verify_code, "is not valid for it")
            if error.verify_code not in CLOCK_VERIFY_CODES:
                raise Untrusted(f"presents a certificate that {problem}") from None
            message = f"presents a certificate that {problem} on {units.today()}, the date of this machine's clock"
            raise Untrusted(message, depends_on_clock=True) from None
        except TimeoutError:
            self.time_limit.remaining_s()
            raise TimedOut("does not answer") from None
        except (OSError, ValueError):
            raise Interrupted("broke off the TLS handshake") from None
        self._socket = tls_socket
        if tls.sha256 and hashlib.sha256(tls_socket.getpeercert(binary_form=True) or b"").hexdigest() != tls.sha256:
            raise Untrusted("presents a certificate other than the expected one")

    def send(self, data: bytes) -> None:
        """Send all of the data.

        Raises:
            TimedOut or Interrupted.
        """
        view = memoryview(data)
        try:
            while view:
                self._socket.settimeout(self.time_limit.remaining_s())
                view = view[self._socket.send(view[:CHUNK_BYTES]) :]
        except TimeoutError:
            self.time_limit.remaining_s()
            raise TimedOut("does not read the request") from None
        except (OSError, ValueError):
            raise Interrupted("broke off the connection") from None

    def receive(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        """Return the next bytes that arrive, or b"" at the end.

        Raises:
            TimedOut or Interrupted.
        """
        start_s, data = time.monotonic(), b""
        try:
            self._socket.settimeout(self.time_limit.remaining_s())
            data = self._socket.recv(max_bytes)
            return data
        except TimeoutError:
            pass
        except OSError:
            raise Interrupted("broke off the connection") from None
        finally:
            self.time_limit.record_wait(time.monotonic() - start_s, len(data))
        self.time_limit.remaining_s()
        raise TimedOut("stopped sending")

    def detach(self) -> socket.socket:
        """Return the socket, for code that enforces its own time limits from now on."""
        return self._socket

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def exchange(path: str, data: bytes, *, timeout_s: float, max_bytes: int) -> bytes:
    """Send data to a unix socket and return the whole answer.

    Raises:
        TransportError: one of its kinds; TooLarge beyond max_bytes.
    """
    with Connection.unix(path, Deadline(timeout_s)) as connection:
        connection.send(data)
        received = bytearray()
        while piece := connection.receive():
            received += piece
            if len(received) > max_bytes:
                raise TooLarge(f"sends more than {max_bytes} bytes")
        return bytes(received)


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connected socket, for code that enforces its own time limits from now on.

    Args:
        timeout_s: time limit for the name lookup and connecting together, and the socket's timeout afterwards.

    Raises:
        OSError: as in `socket.create_connection`, including gaierror and TimeoutError.
    """
    try:
        sock = Connection.tcp(host, port, Deadline(timeout_s)).detach()
    except TimedOut:
        raise TimeoutError("timed out") from None
    except ConnectFailed as error:
        raise (error.error or socket.gaierror(socket.EAI_NONAME, str(error))) from None
    except InvalidRequest as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from None
    sock.settimeout(timeout_s)
    return sock


def resolve_host(host: str, timeout_s: float) -> set[str]:
    """Return the addresses of a host name; empty if it has none or the resolver does not answer within timeout_s."""
    try:
        return {str(address[0]) for _, address in _resolve_addresses(host, 0, Deadline(timeout_s))}
    except TransportError:
        return set()


def _resolve_addresses(host: str, port: int, time_limit: TimeLimit) -> list[tuple[int, Any]]:
    """Return a host's address families and addresses. The resolver has no deadline, so its thread is abandoned if it is late."""
    results: list[Any] = []
    failures: list[Exception] = []

    def resolve(flags: int = 0) -> None:
        try:
            results.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
        except (OSError, ValueError, OverflowError) as error:  # UnicodeError is a ValueError
            failures.append(error)

    resolve(socket.AI_NUMERICHOST)
    if not results:
        failures.clear()
        resolver = threading.Thread(target=resolve, daemon=True, name="resolver")
        resolver.start()
        resolver.join(time_limit.remaining_s())
        time_limit.remaining_s()
    if failures and not isinstance(failures[0], OSError):
        raise InvalidRequest("is not the name of a host")
    if not results:
        error = failures[0] if failures else None
        raise ConnectFailed("has no address", error if isinstance(error, OSError) else None)
    return [(family, address) for family, _, _, _, address in results]


def _describe_error(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refuses the connection"
    if isinstance(error, FileNotFoundError):
        return "is not there"
    return f"cannot be reached ({os.strerror(error.errno).lower() if error.errno else type(error).__name__})"


def _enable_keepalive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _tls_context(tls: Tls) -> ssl.SSLContext:
    """Return a context that checks certificates with the system's authorities, or not at all without `verify` or with a hash."""
    import ssl

    if not tls.verify or tls.sha256:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    context = ssl.create_default_context()
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):  # huggingface_hub and Docker's SDK honour it as well
        with contextlib.suppress(OSError):
            context.load_verify_locations(bundle)
    return context

"""A single HTTP request and its response, limited in time and bytes, on its own connection.

`request` reads the response into memory, with a deadline for everything from the name lookup to the last byte. `open_stream` is
for longer responses: the head has a deadline, and the body a minimum rate and possibly a size. Redirects are followed, and the
environment's proxies used, only if the caller requests it.

http.client is not used, because its limits apply to each read, and importing it takes 25 ms of the 120 that `status` may take.
Source: RFC 9110 and 9112. Requests are HTTP/1.1 with `Connection: close`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from sparkwright.transport.connection import (
    PIECE_BYTES,
    Connection,
    Deadline,
    Interrupted,
    InvalidAnswer,
    InvalidHeader,
    InvalidRequest,
    MinimumRate,
    Progress,
    Tls,
    TooLarge,
)
from sparkwright.trust import bounds
from sparkwright.units import MIB

#: limits for the status line and header fields, including those of interim responses, and for a line between two chunks
HEAD_BYTES, LINE_BYTES = 64 * 1024, 4096
#: size limit of a piece of a body, which is passed on as received
BODY_BYTES = 1 << 20
REDIRECTED = (301, 302, 303, 307, 308)
#: headers that are only sent to their own origin
PRIVATE = ("authorization", "cookie", "proxy-authorization")
PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,16})?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class Headers(Mapping[str, str]):
    """The header fields of a response. Names are case-insensitive, and repeated fields are joined with commas."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@dataclass(frozen=True, slots=True)
class Response:
    """A response that was read completely."""

    status: int
    headers: Headers
    body: bytes
    url: str  #: the URL that answered, after redirects

    def json(self) -> Any:
        """Return the body's JSON value. Raises InvalidAnswer if it is not JSON or is nested too deeply."""
        try:
            return bounds.json_of(self.body, most_bytes=max(len(self.body), 1))
        except bounds.TooMuch as error:
            raise InvalidAnswer(f"sends JSON that {error}") from None
        except ValueError:
            raise InvalidAnswer("sends what is not JSON") from None

    @property
    def text(self) -> str:
        """Return the body as text, replacing bytes that are not UTF-8."""
        return self.body.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a server, besides its URL."""

    #: path of a unix socket, in which case the URL's host is only a name; empty for none
    unix: str = ""
    tls: Tls = field(default_factory=Tls)
    #: use the environment's proxies (HTTPS_PROXY, NO_PROXY ...), for the hub and registries but never for a host or peer
    proxies: bool = False
    #: probe a silent connection
    keep_alive: bool = False


DIRECT = Route()


def request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    most_bytes: int = bounds.ANSWER_BYTES,
    most_error_bytes: int | None = None,
    redirects: int = 0,
    route: Route = DIRECT,
) -> Response:
    """Send a request and return the response, all within timeout_s.

    Args:
        url: an http:// or https:// URL without user and password.
        timeout_s: time limit for everything, including redirects.
        headers: headers other than Host, Content-Length and Connection.
        most_bytes: size limit of the body; a larger one is refused, if possible by its Content-Length before it is read.
        most_error_bytes: size limit of the body for a status other than 2xx, if it differs.
        redirects: number of redirects to follow, for GET and HEAD; after that the redirect itself is returned. Redirects from
            https to http are not followed, and credentials are only sent to their own origin.

    Raises:
        TransportError: one of its kinds (connection.py).
    """
    deadline = Deadline(timeout_s)
    for left in range(redirects, -1, -1):
        with _sent(method, url, headers or {}, body, deadline, route) as stream:
            further = _redirect(method, url, stream) if left else ""
            if not further:
                good = most_error_bytes is None or 200 <= stream.status < 300
                found = stream.read(most_bytes if good else most_error_bytes or 0)
                return Response(stream.status, stream.headers, found, url)
        headers, url = _kept(headers or {}, url, further), further
    raise AssertionError


def open_stream(
    method: str,
    url: str,
    *,
    timeout_s: float,
    rate: MinimumRate,
    headers: Mapping[str, str] | None = None,
    redirects: int = 0,
    route: Route = DIRECT,
) -> Stream:
    """Send a request and return the response as soon as its head has arrived; see `request`.

    Args:
        timeout_s: time limit up to the end of the head, including redirects.
        rate: minimum rate of the body.

    Raises:
        TransportError: one of its kinds. Reading the stream raises them too.
    """
    deadline = Deadline(timeout_s)
    for left in range(redirects, -1, -1):
        stream = _sent(method, url, headers or {}, None, deadline, route)
        try:
            further = _redirect(method, url, stream) if left else ""
        except BaseException:
            stream.close()
            raise
        if not further:
            stream.connection.clock = Progress(rate)
            return stream
        stream.close()
        headers, url = _kept(headers or {}, url, further), further
    raise AssertionError


class Stream:
    """A response whose body is read piece by piece. It has to be closed, or used in a `with` statement."""

    def __init__(self, connection: Connection, method: str) -> None:
        self.connection = connection
        self._buffer = bytearray()
        self.status, self.headers = self._head()
        empty = method == "HEAD" or self.status in (204, 304)
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        if coding not in ("", "chunked"):
            raise InvalidAnswer("encodes its answer in a way that was not requested")
        if self.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise InvalidAnswer("compresses its answer, which was not requested")
        #: size of the body in bytes; None if it ends with its chunks or the connection
        self.size = 0 if empty else None if coding else _length(self.headers)
        self._chunked = bool(coding) and not empty

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces of the body as they arrive. Raises Interrupted if it ends early."""
        if self._chunked:
            yield from self._chunks()
        elif self.size is not None:
            yield from self._exactly(self.size)
        else:
            while self._buffer or self._more():
                piece = bytes(self._buffer)
                self._buffer.clear()
                yield piece

    def read(self, most_bytes: int) -> bytes:
        """Return the whole body. Raises TooLarge if it is longer."""
        if (self.size or 0) > most_bytes:
            raise TooLarge(f"sends more than {_shown(most_bytes)}", most_bytes)
        found = bytearray()
        for piece in self:
            found += piece
            if len(found) > most_bytes:
                raise TooLarge(f"sends more than {_shown(most_bytes)}", most_bytes)
        return bytes(found)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _more(self) -> bool:
        """Receive more bytes, and return False at the end."""
        piece = self.connection.receive(PIECE_BYTES)
        self._buffer += piece
        return bool(piece)

    def _line(self, most_bytes: int) -> bytes:
        """Return the next line without its end. Raises TooLarge if it is longer."""
        seen = 0
        while (end := self._buffer.find(b"\n", seen, most_bytes + 1)) < 0:
            seen = len(self._buffer)
            if seen > most_bytes:
                raise TooLarge("sends a header or a line that is too long")
            if not self._more():
                raise Interrupted("ended its answer early")
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line

    def _head(self) -> tuple[int, Headers]:
        """Return the status and header fields of the final response, skipping interim ones (100, 103)."""
        left = HEAD_BYTES
        while True:
            status, fields, size = self._one_head(left)
            left -= size
            if status == 101:
                raise InvalidAnswer("changes to another protocol")
            if status >= 200:
                return status, fields

    def _one_head(self, most_bytes: int) -> tuple[int, Headers, int]:
        lines, size = list[str](), 0
        while True:
            line = self._line(most_bytes - size)
            size += len(line) + 1
            if not line and lines:
                break
            lines.append(line.decode("latin-1"))
            if len(lines) == 1 and not _STATUS.fullmatch(lines[0]):
                raise InvalidAnswer("does not speak HTTP")
        found = _STATUS.fullmatch(lines[0])
        assert found is not None
        return int(found[1]), _fields(lines[1:]), size

    def _exactly(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            if self._buffer:
                piece = bytes(self._buffer[:left])
                del self._buffer[:left]
            elif not (piece := self.connection.receive(min(left, BODY_BYTES))):
                raise Interrupted("ended its answer early")
            left -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while True:
            found = _SIZE.fullmatch(self._line(LINE_BYTES))
            if found is None:
                raise InvalidAnswer("sends a chunk without its size")
            size = int(found[1], 16)
            if not size:
                return  # the rest is trailers, which are ignored
            yield from self._exactly(size)
            if self._line(LINE_BYTES):
                raise InvalidAnswer("sends a chunk of another size than it says")


def _shown(size: int) -> str:
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size} bytes"


def _fields(lines: list[str]) -> Headers:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or "\0" in value or "\r" in value:
            raise InvalidAnswer("sends an invalid header")
        name, value = name.lower(), value.strip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return Headers(fields)


def _length(headers: Headers) -> int | None:
    lengths = {length.strip() for length in headers.get("content-length", "").split(",")}
    if lengths == {""}:
        return None
    length = lengths.pop()
    if lengths or not re.fullmatch(r"[0-9]{1,18}", length):
        raise InvalidAnswer("sends an invalid length")
    return int(length)


# -- sending ---------------------------------------------------------------------------------------------------------


def _sent(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, deadline: Deadline, route: Route
) -> Stream:
    """Send a request and return the response when its head has arrived."""
    where = split(url)
    proxy = _proxy(where) if route.proxies and not route.unix else None
    connection = _connected(where, proxy, deadline, route)
    try:
        through = proxy is not None and where.scheme == "http"
        fields = _proxy_headers(proxy) if through else {}
        data = _request_bytes(method, where, {**headers, **fields}, body, absolute=through)
        try:
            connection.send(data)
        except Interrupted:
            pass  # a server may answer and close before it has read everything
        return Stream(connection, method)
    except BaseException:
        connection.close()
        raise


def split(url: str) -> SplitResult:
    """Return the parts of an http(s) URL.

    Raises:
        InvalidRequest: it is not one, or has a user, a password, spaces or control characters.
    """
    try:
        where = urlsplit(url)
        port, host = where.port, where.hostname or ""
    except ValueError:
        raise InvalidRequest("is not an http(s) URL") from None
    if where.scheme not in PORTS or port == 0 or not re.fullmatch(r"[!-~]+", url):
        raise InvalidRequest("is not an http(s) URL")
    if not _HOST.fullmatch(host) or "@" in where.netloc:
        raise InvalidRequest("is not an http(s) URL")
    return where


def origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of a URL, which are the scope of its credentials. Raises InvalidRequest."""
    where = split(url)
    return where.scheme, where.hostname or "", where.port or PORTS[where.scheme]


def _request_bytes(
    method: str, where: SplitResult, headers: Mapping[str, str], body: bytes | None, *, absolute: bool
) -> bytes:
    """Return the request as bytes. absolute: use the whole URL as the target, which proxies require."""
    path = (where.path or "/") + (f"?{where.query}" if where.query else "")
    fields = {"Host": where.netloc, "Accept-Encoding": "identity", **headers, "Connection": "close"}
    if body is not None or method == "POST":
        fields["Content-Length"] = str(len(body or b""))
    for name, value in fields.items():
        if not _TOKEN.fullmatch(name) or not re.fullmatch(r"[\t -~\x80-\xff]*", value):
            raise InvalidHeader("is given a header that holds characters which HTTP does not allow")
    target = f"{where.scheme}://{where.netloc}{path}" if absolute else path
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def _connected(where: SplitResult, proxy: SplitResult | None, deadline: Deadline, route: Route) -> Connection:
    host, port = where.hostname or "", where.port or PORTS[where.scheme]
    connection = _opened(proxy or where, deadline, route)
    try:
        if where.scheme == "https":
            if proxy is not None:
                _tunnel(connection, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            connection.secure(host, route.tls)
        return connection
    except BaseException:
        connection.close()
        raise


def _opened(end: SplitResult, deadline: Deadline, route: Route) -> Connection:
    if route.unix:
        return Connection.unix(route.unix, deadline)
    port = end.port or PORTS[end.scheme]
    return Connection.tcp(end.hostname or "", port, deadline, keep_alive=route.keep_alive)


# -- redirects and proxies -------------------------------------------------------------------------------------------


def _redirect(method: str, url: str, stream: Stream) -> str:
    """Return the URL to which a response redirects; empty if it is not followed."""
    location = stream.headers.get("location", "")
    if stream.status not in REDIRECTED or method not in ("GET", "HEAD") or not location:
        return ""
    try:
        further = urljoin(url, location)
        where = split(further)
    except (ValueError, InvalidRequest):
        raise InvalidAnswer("redirects to what is not an http(s) URL") from None
    if urlsplit(url).scheme == "https" and where.scheme != "https":
        raise InvalidAnswer("redirects from https to http")
    return further


def _kept(headers: Mapping[str, str], url: str, further: str) -> dict[str, str]:
    """Return the headers that are kept on a redirect."""
    same = origin(url) == origin(further)
    return {name: value for name, value in headers.items() if same or name.lower() not in PRIVATE}


def _proxy(where: SplitResult) -> SplitResult | None:
    """Return the environment's proxy for a URL, or None. Raises InvalidRequest for a proxy that is not http://."""
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    found = getproxies_environment()
    url = found.get(where.scheme) or found.get("all", "")
    if not url or proxy_bypass_environment(where.netloc, found):
        return None
    try:
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        proxy.port  # noqa: B018  (raises for one that is not a number)
    except ValueError:
        raise InvalidRequest("has a proxy in the environment that is not an http:// URL") from None
    if proxy.scheme != "http" or not _HOST.fullmatch(proxy.hostname or ""):
        raise InvalidRequest("has a proxy in the environment that is not an http:// URL")
    return proxy


def _proxy_headers(proxy: SplitResult | None) -> dict[str, str]:
    if proxy is None or proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def _tunnel(connection: Connection, proxy: SplitResult, target: str) -> None:
    """Open a tunnel to a host through a proxy. Raises Interrupted if the proxy refuses."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"{name}: {value}" for name, value in _proxy_headers(proxy).items()]
    connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
    answer = Stream(connection, "HEAD")
    if answer.status != 200:
        raise Interrupted(f"is behind a proxy, which refuses the connection ({answer.status})")

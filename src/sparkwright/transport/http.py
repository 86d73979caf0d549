"""Send a single HTTP request on its own connection, and read the response, within limits of time and bytes.

`request` reads the response into memory, with a deadline for everything from the name lookup to the last byte. `open_stream` is
for longer responses: the head has a deadline, and the body a minimum rate and possibly a size. Redirects are followed and the
environment's proxies are used only if the caller requests it.

http.client is not used, because its limits apply to each read, and importing it takes 25 ms of the 120 ms that `status` may take.
Source: RFC 9110 and 9112. Requests are HTTP/1.1 with `Connection: close`.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from sparkwright.transport.connection import (
    CHUNK_BYTES,
    BadRedirect,
    ConnectFailed,
    Connection,
    Deadline,
    Interrupted,
    InvalidAnswer,
    InvalidHeader,
    InvalidRequest,
    MinimumRate,
    ProgressDeadline,
    ProxyFailed,
    TimedOut,
    Tls,
    TooLarge,
)
from sparkwright.trust import bounds
from sparkwright.units import MIB

#: size limit of the status line and header fields together, including those of interim responses
MAX_HEAD_BYTES = 64 * 1024
#: size limit of a line between two chunks
MAX_LINE_BYTES = 4096
#: size limit of a piece of a body; pieces are yielded as they are received
MAX_PIECE_BYTES = 1 << 20
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
#: headers that are sent only to their own origin
CREDENTIAL_HEADERS = ("authorization", "cookie", "proxy-authorization")
DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,16})?")
_TOKEN_PATTERN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_STATUS_LINE_PATTERN = re.compile(r"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?")
_CHUNK_SIZE_PATTERN = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_SECONDS_PATTERN = re.compile(r"[0-9]{1,9}")
#: Hugging Face's header, such as `"api";r=0;t=55`: no request (r) is left for 55 s (t)
_RATE_LIMIT_PATTERN = re.compile(r'"\w{1,40}" ?; ?r=0 ?; ?t=([0-9]{1,9})')


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
            return bounds.parse_json(self.body, max_bytes=max(len(self.body), 1))
        except bounds.LimitExceeded as error:
            raise InvalidAnswer(f"sends JSON that {error}") from None
        except ValueError:
            raise InvalidAnswer("sends a response that is not JSON") from None

    @property
    def text(self) -> str:
        """Return the body as text, replacing bytes that are not UTF-8."""
        return self.body.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Route:
    """The connection settings for a server, in addition to its URL."""

    #: path of a unix socket to connect to instead of the URL's host; empty to connect to the host
    unix: str = ""
    tls: Tls = field(default_factory=Tls)
    #: True to use the proxies in the environment (HTTPS_PROXY ...): for the hub and registries, but never for a host or peer
    proxies: bool = False
    #: see `Connection.tcp`
    keep_alive: bool = False


DIRECT = Route()


def request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    max_bytes: int = bounds.MAX_ANSWER_BYTES,
    max_error_bytes: int | None = None,
    max_redirects: int = 0,
    route: Route = DIRECT,
) -> Response:
    """Send a request and return the response, all within timeout_s.

    Args:
        url: an http:// or https:// URL without user and password.
        timeout_s: time limit for everything, including redirects.
        headers: headers other than Host, Content-Length and Connection.
        max_bytes: size limit of the body; a larger body raises TooLarge, before it is read if its Content-Length gives the size.
        max_error_bytes: size limit of the body for a status other than 2xx; None if it is the same.
        max_redirects: number of redirects to follow, for GET and HEAD; one more redirect is returned as the response. A redirect
            from https to http raises InvalidAnswer, and credentials are sent only to their own origin.

    Raises:
        TransportError: one of its kinds (connection.py).
    """
    deadline = Deadline(timeout_s)
    for remaining_redirects in range(max_redirects, -1, -1):
        with _send_request(method, url, headers or {}, body, deadline, route) as stream:
            redirect_url = _find_redirect(method, url, stream) if remaining_redirects else ""
            if not redirect_url:
                has_succeeded = max_error_bytes is None or 200 <= stream.status < 300
                content = stream.read(max_bytes if has_succeeded else max_error_bytes or 0)
                return Response(stream.status, stream.headers, content, url)
        headers, url = _headers_after_redirect(headers or {}, url, redirect_url), redirect_url
    raise AssertionError


def open_stream(
    method: str,
    url: str,
    *,
    timeout_s: float,
    rate: MinimumRate,
    headers: Mapping[str, str] | None = None,
    max_redirects: int = 0,
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
    for remaining_redirects in range(max_redirects, -1, -1):
        stream = _send_request(method, url, headers or {}, None, deadline, route)
        try:
            redirect_url = _find_redirect(method, url, stream) if remaining_redirects else ""
        except BaseException:
            stream.close()
            raise
        if not redirect_url:
            stream.connection.time_limit = ProgressDeadline(rate)
            return stream
        stream.close()
        headers, url = _headers_after_redirect(headers or {}, url, redirect_url), redirect_url
    raise AssertionError


class Stream:
    """A response whose body is read piece by piece. Close it, or use it in a `with` statement."""

    def __init__(self, connection: Connection, method: str) -> None:
        self.connection = connection
        self._buffer = bytearray()
        self.status, self.headers = self._read_head()
        is_empty = method == "HEAD" or self.status in (204, 304)
        transfer_coding = self.headers.get("transfer-encoding", "").strip().lower()
        if transfer_coding not in ("", "chunked"):
            raise InvalidAnswer("encodes its answer in a way that was not requested")
        if self.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise InvalidAnswer("compresses its answer, which was not requested")
        #: size of the body in bytes; None if the last chunk or the end of the connection ends it
        self.size = 0 if is_empty else None if transfer_coding else _parse_length(self.headers)
        self._chunked = bool(transfer_coding) and not is_empty

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces of the body as they arrive. Raises Interrupted if it ends early."""
        if self._chunked:
            yield from self._read_chunks()
        elif self.size is not None:
            yield from self._read_exactly(self.size)
        else:
            while self._buffer or self._receive_more():
                piece = bytes(self._buffer)
                self._buffer.clear()
                yield piece

    def read(self, max_bytes: int) -> bytes:
        """Return the whole body. Raises TooLarge if it is longer than max_bytes."""
        if (self.size or 0) > max_bytes:
            raise TooLarge(f"sends more than {_format_size(max_bytes)}", max_bytes)
        body = bytearray()
        for piece in self:
            body += piece
            if len(body) > max_bytes:
                raise TooLarge(f"sends more than {_format_size(max_bytes)}", max_bytes)
        return bytes(body)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _receive_more(self) -> bool:
        """Receive more bytes. Returns False at the end."""
        piece = self.connection.receive(CHUNK_BYTES)
        self._buffer += piece
        return bool(piece)

    def _read_line(self, max_bytes: int) -> bytes:
        """Return the next line without its line ending. Raises TooLarge if it is longer than max_bytes."""
        searched_bytes = 0
        while (end := self._buffer.find(b"\n", searched_bytes, max_bytes + 1)) < 0:
            searched_bytes = len(self._buffer)
            if searched_bytes > max_bytes:
                raise TooLarge("sends a header or a line that is too long")
            if not self._receive_more():
                raise Interrupted("ended its answer early")
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line

    def _read_head(self) -> tuple[int, Headers]:
        """Return the status and header fields of the final response, skipping interim ones (100, 103)."""
        remaining_bytes = MAX_HEAD_BYTES
        while True:
            status, fields, size = self._read_one_head(remaining_bytes)
            remaining_bytes -= size
            if status == 101:
                raise InvalidAnswer("switches to another protocol")
            if status >= 200:
                return status, fields

    def _read_one_head(self, max_bytes: int) -> tuple[int, Headers, int]:
        lines, size = list[str](), 0
        while True:
            line = self._read_line(max_bytes - size)
            size += len(line) + 1
            if not line and lines:
                break
            lines.append(line.decode("latin-1"))
            if len(lines) == 1 and not _STATUS_LINE_PATTERN.fullmatch(lines[0]):
                raise InvalidAnswer("does not speak HTTP")
        match = _STATUS_LINE_PATTERN.fullmatch(lines[0])
        assert match is not None
        return int(match[1]), _parse_headers(lines[1:]), size

    def _read_exactly(self, size: int) -> Iterator[bytes]:
        remaining_bytes = size
        while remaining_bytes:
            if self._buffer:
                piece = bytes(self._buffer[:remaining_bytes])
                del self._buffer[:remaining_bytes]
            elif not (piece := self.connection.receive(min(remaining_bytes, MAX_PIECE_BYTES))):
                raise Interrupted("ended its answer early")
            remaining_bytes -= len(piece)
            yield piece

    def _read_chunks(self) -> Iterator[bytes]:
        while True:
            match = _CHUNK_SIZE_PATTERN.fullmatch(self._read_line(MAX_LINE_BYTES))
            if match is None:
                raise InvalidAnswer("sends a chunk without its size")
            size = int(match[1], 16)
            if not size:
                return  # only trailers follow, which are ignored
            yield from self._read_exactly(size)
            if self._read_line(MAX_LINE_BYTES):
                raise InvalidAnswer("sends a chunk whose size differs from the announced size")


def _format_size(size: int) -> str:
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size} bytes"


def _parse_headers(lines: list[str]) -> Headers:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN_PATTERN.fullmatch(name) or "\0" in value or "\r" in value:
            raise InvalidAnswer("sends an invalid header")
        name, value = name.lower(), value.strip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return Headers(fields)


def _parse_length(headers: Headers) -> int | None:
    lengths = {length.strip() for length in headers.get("content-length", "").split(",")}
    if lengths == {""}:
        return None
    length = lengths.pop()
    if lengths or not re.fullmatch(r"[0-9]{1,18}", length):
        raise InvalidAnswer("sends an invalid length")
    return int(length)


def parse_requested_pause(headers: Mapping[str, str]) -> float:
    """Return the pause in seconds that a busy server requests before the next request; 0.0 if there is no valid request.

    `Retry-After` has seconds or a date (RFC 9110, section 10.2.3). The date is compared with the server's own, because this
    machine's clock may be wrong. Hugging Face sends `RateLimit` (https://huggingface.co/docs/hub/rate-limits).
    """
    retry_after = headers.get("retry-after", "")
    if _SECONDS_PATTERN.fullmatch(retry_after):
        return float(retry_after)
    if match := _RATE_LIMIT_PATTERN.search(headers.get("ratelimit", "")[:200]):
        return float(match[1]) + 1  # t is rounded down
    retry_s = _parse_date(retry_after)
    if retry_s is None:
        return 0.0
    server_s = _parse_date(headers.get("date", ""))
    return max(0.0, retry_s - (time.time() if server_s is None else server_s))


def _parse_date(text: str) -> float | None:
    """Return an HTTP date in seconds since 1970, or None if it is invalid."""
    try:
        return datetime.strptime(text[:40], "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


# -- sending ---------------------------------------------------------------------------------------------------------


def _send_request(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, deadline: Deadline, route: Route
) -> Stream:
    """Send a request and return the response once its head has arrived."""
    target = parse_url(url)
    proxy = _find_proxy(target) if route.proxies and not route.unix else None
    connection = _connect(target, proxy, deadline, route)
    try:
        is_proxied = proxy is not None and target.scheme == "http"
        fields = _proxy_headers(proxy) if is_proxied else {}
        data = _encode_request(method, target, {**headers, **fields}, body, use_absolute_url=is_proxied)
        try:
            connection.send(data)
        except Interrupted:
            pass  # a server may answer and close before it has read everything
        stream = Stream(connection, method)
        if proxy is not None and target.scheme == "http" and stream.status == 407:
            raise _proxy_refusal(proxy, stream.status)
        return stream
    except BaseException:
        connection.close()
        raise


def parse_url(url: str) -> SplitResult:
    """Return the parts of an http(s) URL.

    Raises:
        InvalidRequest: It is not an http(s) URL, or contains a user, a password, spaces or control characters.
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise InvalidRequest("is not an http(s) URL") from None
    if parts.scheme not in DEFAULT_PORTS or port == 0 or not re.fullmatch(r"[!-~]+", url):
        raise InvalidRequest("is not an http(s) URL")
    if not _HOST_PATTERN.fullmatch(host) or "@" in parts.netloc:
        raise InvalidRequest("is not an http(s) URL")
    return parts


def origin(url: str) -> tuple[str, str, int]:
    """Return a URL's scheme, host and port, which identify where its credentials may be sent. Raises InvalidRequest."""
    parts = parse_url(url)
    return parts.scheme, parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]


def _encode_request(
    method: str, address: SplitResult, headers: Mapping[str, str], body: bytes | None, *, use_absolute_url: bool
) -> bytes:
    """Return the request as bytes. With use_absolute_url, its target is the whole URL, as proxies require."""
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    fields = {"Host": address.netloc, "Accept-Encoding": "identity", **headers, "Connection": "close"}
    if body is not None or method == "POST":
        fields["Content-Length"] = str(len(body or b""))
    for name, value in fields.items():
        if not _TOKEN_PATTERN.fullmatch(name) or not re.fullmatch(r"[\t -~\x80-\xff]*", value):
            raise InvalidHeader("is given a header with characters that HTTP does not allow")
    target = f"{address.scheme}://{address.netloc}{path}" if use_absolute_url else path
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def _connect(address: SplitResult, proxy: SplitResult | None, deadline: Deadline, route: Route) -> Connection:
    host, port = address.hostname or "", address.port or DEFAULT_PORTS[address.scheme]
    try:
        connection = _open_connection(proxy or address, deadline, route)
    except (ConnectFailed, TimedOut) as error:
        if proxy is None:
            raise
        raise ProxyFailed(f"is behind {_proxy_label(proxy)}, which {error}", is_final=False) from None
    try:
        if address.scheme == "https":
            if proxy is not None:
                _open_tunnel(connection, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            connection.secure(host, route.tls)
        return connection
    except BaseException:
        connection.close()
        raise


def _open_connection(address: SplitResult, deadline: Deadline, route: Route) -> Connection:
    if route.unix:
        return Connection.unix(route.unix, deadline)
    port = address.port or DEFAULT_PORTS[address.scheme]
    return Connection.tcp(address.hostname or "", port, deadline, keep_alive=route.keep_alive)


# -- redirects and proxies -------------------------------------------------------------------------------------------


def _find_redirect(method: str, url: str, stream: Stream) -> str:
    """Return the URL to which a response redirects; empty if there is no redirect to follow."""
    location = stream.headers.get("location", "")
    if stream.status not in REDIRECT_STATUSES or method not in ("GET", "HEAD") or not location:
        return ""
    try:
        redirect_url = urljoin(url, location)
        target = parse_url(redirect_url)
    except (ValueError, InvalidRequest):
        raise BadRedirect("redirects to an address that is not an http(s) URL") from None
    if urlsplit(url).scheme == "https" and target.scheme != "https":
        raise BadRedirect("redirects from https to http")
    return redirect_url


def _headers_after_redirect(headers: Mapping[str, str], url: str, redirect_url: str) -> dict[str, str]:
    """Return the headers that are kept on a redirect."""
    same_origin = origin(url) == origin(redirect_url)
    return {name: value for name, value in headers.items() if same_origin or name.lower() not in CREDENTIAL_HEADERS}


def _find_proxy(address: SplitResult) -> SplitResult | None:
    """Return the environment's proxy for a URL, or None. Raises ProxyFailed if the proxy is not http://."""
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    url = proxies.get(address.scheme) or proxies.get("all", "")
    if not url or proxy_bypass_environment(address.netloc, proxies):
        return None
    try:
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        if proxy.scheme != "http" or not _HOST_PATTERN.fullmatch(proxy.hostname or "") or proxy.port == 0:
            raise ValueError
    except ValueError:
        message = "can't be reached: the proxy in the environment is not an http:// URL"
        raise ProxyFailed(message, is_final=True) from None
    return proxy


def _proxy_headers(proxy: SplitResult | None) -> dict[str, str]:
    if proxy is None or proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def _open_tunnel(connection: Connection, proxy: SplitResult, target: str) -> None:
    """Open a tunnel to a host through a proxy. Raises ProxyFailed if the proxy refuses."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"{name}: {value}" for name, value in _proxy_headers(proxy).items()]
    connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
    answer = Stream(connection, "HEAD")
    if answer.status != 200:
        raise _proxy_refusal(proxy, answer.status)


def _proxy_refusal(proxy: SplitResult, status: int) -> ProxyFailed:
    is_login = status in (401, 407)
    problem = "refuses the connection"
    if is_login:
        problem = "requires a login" if proxy.username is None else "does not accept the login"
    return ProxyFailed(f"is behind {_proxy_label(proxy)}, which {problem} ({status})", is_final=is_login)


def _proxy_label(proxy: SplitResult) -> str:
    """Return the proxy's host and port, without its user and password."""
    return f"the proxy {proxy.hostname}:{proxy.port or DEFAULT_PORTS['http']}"

"""Requests over real sockets to normal, broken and hostile servers; each ends at its deadline."""

import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkwright
from sparkwright import units
from sparkwright.transport import http
from sparkwright.transport.connection import (
    ConnectFailed,
    Interrupted,
    InvalidAnswer,
    InvalidRequest,
    MinimumRate,
    ProxyFailed,
    TimedOut,
    Tls,
    TooLarge,
    TransportError,
    Untrusted,
    dial,
    exchange,
    resolve_host,
)
from sparkwright.transport.http import Response, Route
from tests.certificate import write_self_signed
from tests.transport.servers import CHUNKED, OK, Script, drip_script, read_head, send_script, serving, with_body

#: these connect to IP addresses: of this host, and of the sandbox's group
BY_ADDRESS = ("host/containers/containers.py", "sandbox/vllm/engine.py")
ANSWERS = {
    "by its length": (OK + b"Content-Length: 4\r\n\r\nbodyrest", (200, b"body")),
    "until it is closed": (b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\nbody", (200, b"body")),
    "in chunks": (CHUNKED + b"3;a=b\r\nbod\r\n1\r\ny\r\n0\r\n\r\n", (200, b"body")),
    "empty": (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", (503, b"")),
    "without a reason": (b"HTTP/1.1 204\r\n\r\n", (204, b"")),
    "after interim responses": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + with_body(b"body"),
        (200, b"body"),
    ),
    "with one length twice": (OK + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody", (200, b"body")),
}
BROKEN: dict[str, tuple[bytes, type[TransportError]]] = {
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", InvalidAnswer),
    "nothing": (b"", Interrupted),
    "half a header": (OK + b"Content-Le", Interrupted),
    "half a body": (OK + b"Content-Length: 9\r\n\r\nbody", Interrupted),
    "half a chunk": (CHUNKED + b"9\r\nbody", Interrupted),
    "chunks without a last chunk": (CHUNKED + b"4\r\nbody\r\n", Interrupted),
    "an invalid chunk size": (CHUNKED + b"-1\r\nbody", InvalidAnswer),
    "a chunk of another size": (CHUNKED + b"2\r\nbody\r\n0\r\n\r\n", InvalidAnswer),
    "an endless chunk line": (CHUNKED + b"4;" + b"a" * 2**18, TooLarge),
    "an endless header": (OK + b"A: " + b"a" * 2**18, TooLarge),
    "endless header fields": (OK + b"A: a\r\n" * 2**15, TooLarge),
    "endless interim responses": (b"HTTP/1.1 100 Continue\r\n\r\n" * 2**13, TooLarge),
    "too much": (OK + b"Content-Length: 9999\r\n\r\n" + b"a" * 9999, TooLarge),
    "too much until it is closed": (OK + b"\r\n" + b"a" * 9999, TooLarge),
    "too much in chunks": (CHUNKED + (b"400\r\n" + b"a" * 1024 + b"\r\n") * 9 + b"0\r\n\r\n", TooLarge),
    "too much in small chunks": (CHUNKED + b"1\r\na\r\n" * 6000, TooLarge),
    "a declared size above the limit": (OK + b"Content-Length: 999999999999\r\n\r\n", TooLarge),
    "an invalid length": (OK + b"Content-Length: -1\r\n\r\n", InvalidAnswer),
    "two lengths": (OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody", InvalidAnswer),
    "a length with thousands of digits": (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", InvalidAnswer),
    "compressed": (OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b", InvalidAnswer),
    "another coding": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", InvalidAnswer),
    "a switch of the protocol": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", InvalidAnswer),
    "a field without a name": (OK + b": x\r\n\r\n", InvalidAnswer),
    "a field over two lines": (OK + b"A: x\r\n y\r\n\r\n", InvalidAnswer),
}
DRIPPING: dict[str, Script] = {
    "its header": drip_script(OK + b"A: "),
    "its fields": drip_script(OK, b"A: a\r\n"),
    "interim responses": drip_script(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "its body": drip_script(OK + b"Content-Length: 1000\r\n\r\n"),
    "its body until it is closed": drip_script(OK + b"\r\n"),
    "its chunks": drip_script(CHUNKED, b"1\r\na\r\n"),
    "a chunk's extension": drip_script(CHUNKED + b"1;"),
}


def get(url: str, **options: object) -> Response:
    return http.request("GET", url, **{"timeout_s": 20, "max_bytes": 5000, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("bytewise", [False, True], ids=["at once", "a byte at a time"])
def test_valid_answers_are_read(name: str, bytewise: bool) -> None:
    raw, expected = ANSWERS[name]

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in range(len(raw)):
            connection.sendall(raw[n : n + 1])

    with serving(script if bytewise else send_script(raw)) as server:
        answer = get(server.url)
    assert (answer.status, answer.body) == expected


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_answer_is_an_error(name: str) -> None:
    raw, error = BROKEN[name]
    with serving(send_script(raw)) as server, pytest.raises(TransportError) as raised:
        get(server.url)
    assert raised.type is error


@pytest.mark.parametrize("name", DRIPPING)
def test_slow_answer_times_out(name: str) -> None:
    with serving(DRIPPING[name]) as server, pytest.raises(TimedOut):
        get(server.url, timeout_s=0.3)


def test_server_that_reads_no_request_times_out() -> None:
    stopped = threading.Event()

    def wait_for_end(connection: socket.socket) -> None:
        stopped.wait(20)

    with serving(wait_for_end) as server, pytest.raises(TimedOut):
        http.request("POST", server.url, body=b"a" * 2**25, timeout_s=0.5)
    stopped.set()


def test_answer_before_the_whole_request_was_read() -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(10)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    with serving(script) as server:
        assert http.request("POST", server.url, body=b"a" * 2**20, timeout_s=20).status == 413


def test_refused_connection_differs_from_an_unknown_name() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    with pytest.raises(ConnectFailed) as raised:
        get(url)
    assert raised.value.refused
    with pytest.raises(ConnectFailed) as raised:
        get("http://no-such-host.invalid/")
    assert not raised.value.refused


def test_hanging_resolver_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No resolver of this machine can be made to hang: the system's function is replaced by a waiting function."""
    stopped, getaddrinfo = threading.Event(), socket.getaddrinfo

    def wait_and_resolve(
        host: str, port: int, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> object:
        if not flags & socket.AI_NUMERICHOST:
            stopped.wait(20)
        return getaddrinfo(host, port, family, type, proto, flags)

    monkeypatch.setattr(socket, "getaddrinfo", wait_and_resolve)
    with pytest.raises(TimedOut):
        get("http://localhost:1/", timeout_s=0.2)
    with pytest.raises(TimeoutError):
        dial("localhost", 1, 0.2)
    assert resolve_host("localhost", 0.2) == set()
    stopped.set()


def test_dialled_socket_has_the_options_and_errors_of_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            dial("127.0.0.1", port, 5)
        listening.listen()
        with dial("localhost", port, 5) as opened:
            assert opened.getpeername() == ("127.0.0.1", port) and opened.gettimeout() == 5
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with pytest.raises(socket.gaierror):
        dial("no-such-host.invalid", 22, 5)
    with pytest.raises(socket.gaierror):
        dial("a..b" + "x" * 300, 22, 5)
    assert "127.0.0.1" in resolve_host("localhost", 5)


def test_every_lookup_has_a_deadline() -> None:
    """The deadline of `socket.create_connection` does not cover the lookup, which may take minutes."""
    source = Path(sparkwright.__file__).parent
    lookup = re.compile(r"create_connection\(|getaddrinfo\(|gethostbyname\(")
    files = {str(path.relative_to(source)) for path in source.rglob("*.py") if lookup.search(path.read_text())}
    assert files == {"transport/connection.py", *BY_ADDRESS}


def test_server_that_never_accepts_times_out() -> None:
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        with pytest.raises(TimedOut):
            get(f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout_s=0.3)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://127.0.0.1/", "http:///x", "http://127.0.0.1:0/", "http://127.0.0.1:x/", "http://127.0.0.1:99999/"),
        *("http://a:b@127.0.0.1/", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nX: y", "http://127.0.0.1/é"),
        *("http://[::1/", "http://" + "a" * 300 + "/", "127.0.0.1", ""),
    ],
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        get(url)


def test_header_injection_is_refused_without_quoting_it() -> None:
    with serving(send_script(OK + b"\r\n")) as server, pytest.raises(InvalidRequest) as raised:
        get(server.url, headers={"Authorization": "Bearer secret\r\nX: y"})
    assert "secret" not in str(raised.value)


def redirect_script(location: str, heads: list[bytes] | None = None, status: int = 302) -> Script:
    answer = f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    return send_script(answer.encode(), heads)


def test_redirects_are_followed_only_if_requested() -> None:
    with serving(send_script(with_body(b""))) as other, serving(redirect_script(other.url)) as server:
        answer = get(server.url)
        assert (answer.status, answer.headers["location"], other.connections) == (302, other.url, 0)
        assert (get(server.url, max_redirects=1).status, other.connections) == (200, 1)


def test_credentials_are_not_sent_to_another_origin() -> None:
    heads: list[bytes] = []
    headers = {"Authorization": "Bearer secret", "Cookie": "secret", "Accept": "*/*"}
    with serving(send_script(with_body(b""), heads)) as other, serving(redirect_script(other.url)) as server:
        get(server.url, max_redirects=3, headers=headers)
    assert b"Accept: */*" in heads[0] and b"secret" not in heads[0]


def test_redirect_loop_ends_at_the_limit() -> None:
    with serving(redirect_script("/again")) as server:
        assert get(server.url, max_redirects=3).status == 302
        assert server.connections == 4


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/", "http://a:b@127.0.0.1/", "http://[", "http://127.0.0.1/ x"])
def test_redirect_to_an_invalid_url_is_refused(location: str) -> None:
    with serving(redirect_script(location)) as server, pytest.raises(InvalidAnswer):
        get(server.url, max_redirects=3)


def test_post_is_never_redirected() -> None:
    with serving(redirect_script("/", status=307)) as server:
        assert http.request("POST", server.url, body=b"x", max_redirects=3, timeout_s=20).status == 307


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, str, Path]:
    """A server's side, the SHA-256 of its certificate, and the file."""
    file, key = write_self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    raw = ssl.PEM_cert_to_DER_cert(file.read_text())
    return context, hashlib.sha256(raw).hexdigest(), file


def test_certificate_is_verified_by_authority_or_hash(
    certificate: tuple[ssl.SSLContext, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, sha256, file = certificate
    heads: list[bytes] = []
    with serving(send_script(with_body(b"body"), heads), context=context) as server:
        for tls in (Tls(), Tls(sha256="0" * 64)):
            with pytest.raises(Untrusted):
                get(server.url, route=Route(tls=tls))
        assert not any(heads)
        assert get(server.url, route=Route(tls=Tls(sha256=sha256))).body == b"body"
        assert get(server.url, route=Route(tls=Tls(verify=False))).body == b"body"
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert get(server.url).body == b"body"


@pytest.mark.parametrize(
    ("begin_days", "end_days", "address", "problem"),
    [
        (-9, -1, "127.0.0.1", f"has expired on {units.today()}, the date of this machine's clock"),
        (1, 9, "127.0.0.1", f"is not yet valid on {units.today()}, the date of this machine's clock"),
        (-1, 9, "127.0.0.2", "is for another name"),
    ],
)
def test_problem_of_a_certificate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin_days: int, end_days: int, address: str, problem: str
) -> None:
    file, key = write_self_signed(tmp_path, begin_days=begin_days, end_days=end_days, address=address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with (
        serving(send_script(with_body(b"body")), context=context) as server,
        pytest.raises(Untrusted, match=f"^presents a certificate that {problem}$") as raised,
    ):
        get(server.url)
    assert raised.value.depends_on_clock == ("clock" in problem)


def test_slow_handshake_times_out() -> None:
    with serving(drip_script(b"\x16\x03\x03\x40\x00", b"\x02")) as server, pytest.raises(TimedOut):
        get(server.url.replace("http:", "https:"), timeout_s=0.3)


def test_slow_answer_over_tls_times_out(certificate: tuple[ssl.SSLContext, str, Path]) -> None:
    with serving(DRIPPING["its body"], context=certificate[0]) as server, pytest.raises(TimedOut):
        get(server.url, timeout_s=0.5, route=Route(tls=Tls(verify=False)))


def test_truncated_answer_over_tls_is_an_error(certificate: tuple[ssl.SSLContext, str, Path]) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(OK + b"\r\nhalf")
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS, as somebody on the way can

    with serving(script, context=certificate[0]) as server, pytest.raises(Interrupted):
        get(server.url, route=Route(tls=Tls(verify=False)))


def test_server_without_tls_is_an_error() -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serving(script) as server, pytest.raises(Interrupted):
        get(server.url.replace("http:", "https:"))


def test_proxy_is_used_only_if_requested(
    certificate: tuple[ssl.SSLContext, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []

    def script(connection: socket.socket) -> None:
        heads.append(read_head(connection))
        if heads[-1].startswith(b"CONNECT"):
            connection.sendall(OK + b"\r\n")
            with certificate[0].wrap_socket(connection, server_side=True) as secured:
                heads.append(read_head(secured))
                secured.sendall(with_body(b"secure"))
        else:
            connection.sendall(with_body(b"plain"))

    route = Route(proxies=True, tls=Tls(verify=False))
    with serving(script) as proxy, serving(send_script(with_body(b"direct"))) as server:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://me:word@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "localhost")
        assert get(server.url).body == b"direct"
        assert get(server.url, route=route).body == b"plain"
        assert get("https://hub.test/x", route=route).body == b"secure"
        assert get(server.url.replace("127.0.0.1", "localhost"), route=route).body == b"direct"
    assert heads[0].startswith(f"GET {server.url} HTTP/1.1".encode()) and b"Basic bWU6d29yZA==" in heads[0]
    assert heads[1].startswith(b"CONNECT hub.test:443 ") and b"Basic bWU6d29yZA==" in heads[1]
    assert heads[2].startswith(b"GET /x ") and b"Proxy-Authorization" not in heads[2]


@pytest.mark.parametrize(
    ("proxy", "answer", "problem"),
    [
        ("http://me:word-1234@127.0.0.1:PORT", b"HTTP/1.1 407 No\r\n\r\n", "which does not accept the login (407)"),
        ("http://127.0.0.1:PORT", b"HTTP/1.1 407 No\r\n\r\n", "which requires a login (407)"),
        ("https://me:word-1234@127.0.0.1:PORT", b"", "the proxy in the environment is not an http:// URL"),
        ("socks5://127.0.0.1:PORT", b"", "the proxy in the environment is not an http:// URL"),
        ("http://me:word-1234@127.0.0.1:70000", b"", "the proxy in the environment is not an http:// URL"),
        ("http://me:word-1234@127.0.0.1:1", b"", "the proxy 127.0.0.1:1, which refuses the connection"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_failure_of_a_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, scheme: str, proxy: str, answer: bytes, problem: str
) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(answer)

    with serving(script) as server:
        monkeypatch.setenv(f"{scheme}_proxy", proxy.replace("PORT", str(server.port)))
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(ProxyFailed) as raised:
            get(f"{scheme}://hub.test/x", route=Route(proxies=True))
    assert problem in str(raised.value) and "word-1234" not in str(raised.value)


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry-after": "120"}, 120),
        ({"retry-after": "Mon, 30 Nov 2026 12:02:00 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 120),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        ({"ratelimit": '"resolvers";r=0;t=55'}, 56),
        ({"ratelimit": '"resolvers";r=3;t=55'}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "1e9"}, 0),
        ({"retry-after": "9" * 400}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "Mon, 30 Nov 99999 12:00:00 GMT"}, 0),
        ({}, 0),
    ],
)
def test_pause_that_a_busy_server_requests(headers: dict[str, str], pause_s: float) -> None:
    assert http.parse_requested_pause(headers) == pause_s


def test_stream_above_the_minimum_rate_has_no_deadline() -> None:
    script = drip_script(OK + b"Content-Length: 60\r\n\r\n", b"a", every_s=0.01, pieces=60)
    with (
        serving(script) as server,
        http.open_stream("GET", server.url, timeout_s=20, rate=MinimumRate(1, 20)) as stream,
    ):
        assert (stream.size, b"".join(stream)) == (60, b"a" * 60)


def test_stream_below_the_minimum_rate_times_out() -> None:
    with (
        serving(drip_script(OK + b"\r\n")) as server,
        http.open_stream("GET", server.url, timeout_s=20, rate=MinimumRate(10_000, 0.3)) as stream,
        pytest.raises(TimedOut),
    ):
        b"".join(stream)


def test_head_of_a_stream_has_a_deadline() -> None:
    with serving(DRIPPING["its header"]) as server, pytest.raises(TimedOut):
        http.open_stream("GET", server.url, timeout_s=0.3, rate=MinimumRate(1, 20))


def test_slow_reader_does_not_count_against_the_rate() -> None:
    with (
        serving(send_script(with_body(b"body"))) as server,
        http.open_stream("GET", server.url, timeout_s=20, rate=MinimumRate(1, 0.05)) as stream,
    ):
        threading.Event().wait(0.2)
        assert b"".join(stream) == b"body"


def test_request_over_a_unix_socket(tmp_path: Path) -> None:
    with serving(send_script(with_body(b"body")), path=tmp_path / "s"):
        assert get("http://localhost/x", route=Route(unix=str(tmp_path / "s"))).body == b"body"
    with pytest.raises(ConnectFailed) as raised:
        get("http://localhost/x", route=Route(unix=str(tmp_path / "none")))
    assert raised.value.refused


@pytest.fixture
def full_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """A listening unix socket with a full queue."""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as waiting:
        listening.bind(str(tmp_path / "s"))
        listening.listen(0)
        waiting.connect(str(tmp_path / "s"))
        yield listening


def test_full_queue_of_a_unix_socket_is_waited_for(full_socket: socket.socket) -> None:
    """Docker's socket has many clients; with Python's timeout, a full queue would be a refusal."""
    answers, route = list[Response](), Route(unix=full_socket.getsockname())
    thread = threading.Thread(target=lambda: answers.append(get("http://localhost/x", route=route)))
    thread.start()
    full_socket.accept()[0].close()
    with full_socket.accept()[0] as connection:
        assert connection.recv(1000)
        connection.sendall(OK + b"\r\n")
    thread.join()
    assert [answer.status for answer in answers] == [200]


def test_unix_socket_that_never_accepts_times_out(full_socket: socket.socket) -> None:
    with pytest.raises(TimedOut):
        get("http://localhost/x", timeout_s=0.2, route=Route(unix=full_socket.getsockname()))


def test_exchange_over_a_unix_socket_is_bounded(tmp_path: Path) -> None:
    commands: list[bytes] = []
    with serving(send_script(b"Name: HAProxy\n", commands), path=tmp_path / "a"):
        assert exchange(str(tmp_path / "a"), b"show info\n", timeout_s=20, max_bytes=100) == b"Name: HAProxy\n"
        assert commands == [b"show info\n"]
        with pytest.raises(TooLarge):
            exchange(str(tmp_path / "a"), b"show info\n", timeout_s=20, max_bytes=5)
    with serving(drip_script(b""), path=tmp_path / "b"), pytest.raises(TimedOut):
        exchange(str(tmp_path / "b"), b"show info\n", timeout_s=0.3, max_bytes=10_000)

"""Connections to Debian's real HAProxy from several kinds of addresses: which are rejected, and the memory that they take."""

import contextlib
import json
import re
import select
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.gateway import listeners, render
from sparkwright.host.gateway import haproxy_sockets, server_operations
from sparkwright.host.gateway.haproxy_sockets import Endpoint
from tests.gateway.loopback import (
    DEADLINE_S,
    HOST_KEYS,
    KEY,
    RunningGateway,
    StreamServer,
    build_gateway,
    build_model,
    run_gateway,
)

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy"),
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux: every address of 127.0.0.0/8"),
]
#: addresses of strangers, and of a client
STRANGERS, CLIENT = [f"127.0.0.{n}" for n in range(2, 10)], "127.0.0.99"
HALF_REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: x"
MIB = 2**20


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    monkeypatch.setattr(listeners, "HEAD_TIMEOUT_S", 600)  # no half request ends by itself while a test lasts
    server = StreamServer("one")
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server, slots=0), clients=256)) as running_gateway:
        running_gateway.up("qwen")
        yield running_gateway
    server.shutdown()


@contextlib.contextmanager
def open_connections(port: int, sources: list[str], sent: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Yield connections from these addresses in turn, which have sent these bytes and nothing more."""
    with contextlib.ExitStack() as stack:
        links = []
        for n in range(count):
            link = stack.enter_context(socket.socket())
            link.settimeout(DEADLINE_S)
            link.bind((sources[n % len(sources)], 0))
            with contextlib.suppress(OSError):  # it may be refused
                link.connect(("127.0.0.1", port))
                link.sendall(sent)
            links.append(link)
        yield links


def request_from(port: int, source: str, key: str, path: str = "/v1/models") -> bytes:
    """Return the answer to a whole request from an address; empty if the connection is refused."""
    with socket.socket() as link, contextlib.suppress(ConnectionError):
        link.settimeout(DEADLINE_S)
        link.bind((source, 0))
        link.connect(("127.0.0.1", port))
        link.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: link.recv(65536), b""))
    return b""


def test_half_requests_of_a_stranger_keep_nobody_out(lab: RunningGateway) -> None:
    """They block neither known nor new clients, nor a host, nor the check of a deploy."""
    assert request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200")
    with open_connections(lab.gateway.port, STRANGERS[:1], HALF_REQUEST, 256):
        assert request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200")
        assert request_from(lab.gateway.port, "127.0.0.98", KEY).startswith(b"HTTP/1.1 200")


def test_half_requests_of_many_strangers_leave_room_for_those_who_had_a_key(lab: RunningGateway) -> None:
    assert request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200")
    endpoint = server_operations.Gateway("lab", "127.0.0.1", lab.gateway.control_port, tls=False, server="one")
    server_operations.list_servers(endpoint, HOST_KEYS["one"])
    with (
        open_connections(lab.gateway.port, STRANGERS, HALF_REQUEST, 400),
        open_connections(lab.gateway.control_port, STRANGERS, HALF_REQUEST, 400),
    ):
        assert request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200")
        assert [server.name for server in server_operations.list_servers(endpoint, HOST_KEYS["one"])] == ["one"]


def test_the_proof_of_a_deploy_needs_no_connection_of_the_clients(lab: RunningGateway) -> None:
    """Clients with the key, from two addresses, hold all connections."""
    request = HALF_REQUEST + f"\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    sources = ["127.0.0.97", CLIENT]
    for source in sources:
        assert request_from(lab.gateway.port, source, KEY).startswith(b"HTTP/1.1 200")
    with open_connections(lab.gateway.port, sources, request, 256) as held:
        for link in held:
            assert link.recv(15) == b"HTTP/1.1 200 OK"
        door = Endpoint(lab.gateway.port, sockets=lab.sockets)
        assert haproxy_sockets.send_request(door, "/v1/models", key=KEY, timeout_s=DEADLINE_S).status == 200
        assert haproxy_sockets.send_request(door, "/v1/models", timeout_s=DEADLINE_S).status == 401


def test_one_address_with_a_key_does_not_get_every_connection(lab: RunningGateway) -> None:
    assert request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200")
    with open_connections(lab.gateway.port, [CLIENT], HALF_REQUEST, 300):
        assert request_from(lab.gateway.port, "127.0.0.98", KEY).startswith(b"HTTP/1.1 200")


def test_a_request_whose_head_does_not_arrive_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HEAD_TIMEOUT_S", 1)
    server = StreamServer("one")
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server))) as lab:
        for port in (lab.gateway.port, lab.gateway.control_port):
            with open_connections(port, STRANGERS[:1], HALF_REQUEST, 1) as (link,):
                assert link.recv(65536).startswith(b"HTTP/1.1 408")
                assert link.recv(65536) == b""
    server.shutdown()


def test_a_client_may_wait_for_its_server_longer_than_it_may_leave_an_answer_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "CLIENT_TIMEOUT_S", 1)
    server = StreamServer("one")
    server.go_on.clear()
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server))) as lab:
        lab.up("qwen")
        threading.Timer(2.5, server.go_on.set).start()
        assert lab.chat({"model": "qwen", "stream": True}).body.endswith(b"data: [DONE]\n\n")
    server.shutdown()


# -- memory ----------------------------------------------------------------------------------------------------------


def resident_mib(lab: RunningGateway) -> float:
    """Return the resident memory of the process that serves, MiB: the larger of HAProxy's two."""
    children = Path(f"/proc/{lab.process.pid}/task/{lab.process.pid}/children").read_text().split()
    status = [Path(f"/proc/{pid}/status").read_text() for pid in (str(lab.process.pid), *children)]
    return max(int(re.search(r"VmRSS:\s+([0-9]+)", text)[1]) for text in status) / 1024  # type: ignore[index]


def http2_frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def http2_field(name: str, value: str) -> bytes:
    """Return a header field as HPACK writes it without indexing (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def http2_streams(count: int, body: bytes) -> bytes:
    """Return the start of an HTTP/2 connection by prior knowledge, with interleaved bodies of several requests."""
    headers = {":authority": "x", "authorization": f"Bearer {KEY}", "content-length": str(len(body))}
    fields = {":path": "/v1/chat/completions", **headers}
    head = b"\x83\x86" + b"".join(http2_field(name, value) for name, value in fields.items())
    numbers = [1 + 2 * n for n in range(count)]
    parts = [http2_frame(1, 4, number, head) for number in numbers]
    pieces = [body[at : at + 16384] for at in range(0, len(body) - 16384, 16384)]
    parts += [http2_frame(0, 0, number, piece) for piece in pieces for number in numbers]
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0) + b"".join(parts)


def resident_after_sending_mib(lab: RunningGateway, links: list[socket.socket], sent: bytes) -> float:
    """Send this on each connection until none takes more, and read what comes; the memory then."""
    unsent = {link: memoryview(sent) for link in links}
    for link in links:
        link.setblocking(False)
    while unsent:
        readable, ready, _ = select.select(list(unsent), list(unsent), [], 1)
        if not ready and not readable:
            break
        for link in {*ready, *readable}:
            try:
                if link in readable and not link.recv(65536):
                    del unsent[link]
                    continue
                if link in ready:
                    unsent[link] = unsent[link][link.send(unsent[link][: 1 << 18]) :]
                    if not unsent[link]:
                        del unsent[link]
            except OSError:
                unsent.pop(link, None)
    return resident_mib(lab)


def test_http_2_by_prior_knowledge_is_not_spoken(lab: RunningGateway) -> None:
    """Eight clients with a hundred streams each would hold eight hundred requests of a MiB."""
    before_mib = resident_mib(lab)
    with open_connections(lab.gateway.port, [CLIENT], b"", 8) as links:
        grown_mib = resident_after_sending_mib(lab, links, http2_streams(100, b"x" * MIB)) - before_mib
    assert grown_mib < 8 * 3
    for port in (lab.gateway.port, lab.gateway.control_port):
        assert b"HTTP/1.1 400" in lab.raw(http2_streams(1, b""), port)
    assert request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200")


def test_as_many_clients_as_may_connect_take_no_more_than_was_counted(lab: RunningGateway) -> None:
    """256 connections with two pipelined requests of a MiB each, to a server that answers none."""
    body = json.dumps({"model": "qwen", "max_tokens": 2, "x": "y" * (MIB - 200)}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    for source in ("127.0.0.97", CLIENT):
        assert request_from(lab.gateway.port, source, KEY).startswith(b"HTTP/1.1 200")
    with open_connections(lab.gateway.port, ["127.0.0.97", CLIENT], b"", 256) as links:
        held_mib = resident_after_sending_mib(lab, links, 3 * (head.encode() + body))
        assert held_mib < (render.max_memory_bytes(lab.gateway) + render.PROCESS_BYTES) / MIB
        door = Endpoint(lab.gateway.port, sockets=lab.sockets)
        assert haproxy_sockets.send_request(door, "/v1/models", key=KEY, timeout_s=DEADLINE_S).status == 200
    until_s = time.monotonic() + DEADLINE_S
    while not request_from(lab.gateway.port, CLIENT, KEY).startswith(b"HTTP/1.1 200"):
        assert time.monotonic() < until_s

"""Connections to a real HAProxy from several addresses: which are rejected, and how much memory they take."""

import contextlib
import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.gateway import listeners, render
from sparkwright.host.gateway import haproxy_sockets, server_operations
from sparkwright.host.gateway.haproxy_sockets import Endpoint
from tests.gateway.loopback import HOST_KEYS, KEY, RunningGateway, build_gateway, build_model, run_gateway, serve_models
from tests.gateway.servers import CHAT, DEADLINE_S, StreamServer, needs_haproxy
from tests.waiting import wait_until

pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux: every address of 127.0.0.0/8"),
]
#: addresses of strangers, and of a client
STRANGERS, CLIENT = [f"127.0.0.{n}" for n in range(2, 10)], "127.0.0.99"
HALF_REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: x"
MIB = 2**20


@pytest.fixture
def lab(tmp_path: Path, server: StreamServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    monkeypatch.setattr(listeners, "HEAD_TIMEOUT_S", 600)  # longer than any test
    with serve_models(tmp_path, build_model("qwen", server, slots=0), clients=256) as lab:
        yield lab


@contextlib.contextmanager
def open_connections(port: int, sources: list[str], sent: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Yield connections from these addresses, alternating, that have sent only these bytes."""
    with contextlib.ExitStack() as stack:
        links = []
        for n in range(count):
            link = stack.enter_context(socket.socket())
            link.settimeout(DEADLINE_S)
            link.bind((sources[n % len(sources)], 0))
            with contextlib.suppress(OSError):  # a connection may be refused
                link.connect(("127.0.0.1", port))
                link.sendall(sent)
            links.append(link)
        yield links


def request_from(port: int, source: str, key: str, path: str = "/v1/models") -> bytes:
    """Return the answer to a complete request from an address; empty if the connection is refused."""
    with socket.socket() as link, contextlib.suppress(ConnectionError):
        link.settimeout(DEADLINE_S)
        link.bind((source, 0))
        link.connect(("127.0.0.1", port))
        link.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: link.recv(65536), b""))
    return b""


def is_answered(lab: RunningGateway, source: str = CLIENT) -> bool:
    """Return True if a request with the key from this address is answered."""
    return request_from(lab.gateway.port, source, KEY).startswith(b"HTTP/1.1 200")


def test_incomplete_requests_of_one_address_block_no_client(lab: RunningGateway) -> None:
    assert is_answered(lab)
    with open_connections(lab.gateway.port, STRANGERS[:1], HALF_REQUEST, 256):
        assert is_answered(lab)
        assert is_answered(lab, "127.0.0.98")


def test_incomplete_requests_of_many_addresses_leave_room_for_known_clients_and_hosts(lab: RunningGateway) -> None:
    assert is_answered(lab)
    server_operations.list_servers(lab.endpoint(), HOST_KEYS["one"])
    with (
        open_connections(lab.gateway.port, STRANGERS, HALF_REQUEST, 400),
        open_connections(lab.gateway.control_port, STRANGERS, HALF_REQUEST, 400),
    ):
        assert is_answered(lab)
        assert [server.name for server in server_operations.list_servers(lab.endpoint(), HOST_KEYS["one"])] == ["one"]


def test_a_deploy_can_verify_the_gateway_while_clients_hold_all_connections(lab: RunningGateway) -> None:
    """The clients have the key and two addresses."""
    request = HALF_REQUEST + f"\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    sources = ["127.0.0.97", CLIENT]
    assert all(is_answered(lab, source) for source in sources)
    with open_connections(lab.gateway.port, sources, request, 256) as held:
        for link in held:
            assert link.recv(15) == b"HTTP/1.1 200 OK"
        socket_endpoint = Endpoint(lab.gateway.port, sockets=lab.sockets)
        for key, status in ((KEY, 200), ("", 401)):
            answer = haproxy_sockets.send_request(socket_endpoint, "/v1/models", key=key, timeout_s=DEADLINE_S)
            assert answer.status == status


def test_one_address_with_a_key_does_not_get_every_connection(lab: RunningGateway) -> None:
    assert is_answered(lab)
    with open_connections(lab.gateway.port, [CLIENT], HALF_REQUEST, 300):
        assert is_answered(lab, "127.0.0.98")


def test_an_incomplete_request_times_out(tmp_path: Path, server: StreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HEAD_TIMEOUT_S", 1)
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server))) as lab:
        for port in (lab.gateway.port, lab.gateway.control_port):
            with open_connections(port, STRANGERS[:1], HALF_REQUEST, 1) as (link,):
                assert link.recv(65536).startswith(b"HTTP/1.1 408")
                assert link.recv(65536) == b""


def test_the_timeout_of_clients_does_not_limit_the_wait_for_a_server(
    tmp_path: Path, server: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "CLIENT_TIMEOUT_S", 1)
    server.go_on.clear()
    with serve_models(tmp_path, build_model("qwen", server)) as lab:
        threading.Timer(2.5, server.go_on.set).start()
        assert lab.chat({"model": "qwen", "stream": True}).body.endswith(b"data: [DONE]\n\n")


# -- memory ----------------------------------------------------------------------------------------------------------


def resident_mib(lab: RunningGateway) -> float:
    """Return the resident memory of the larger of HAProxy's two processes, the worker, in MiB."""
    children = Path(f"/proc/{lab.process.pid}/task/{lab.process.pid}/children").read_text().split()
    status = [Path(f"/proc/{pid}/status").read_text() for pid in (str(lab.process.pid), *children)]
    return max(int(re.search(r"VmRSS:\s+([0-9]+)", text)[1]) for text in status) / 1024  # type: ignore[index]


def resident_after_sending_mib(lab: RunningGateway, links: list[socket.socket], sent: bytes) -> float:
    """Send these bytes on each connection until all are blocked. Return the memory afterwards."""
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


def test_http_2_by_prior_knowledge_is_refused(lab: RunningGateway) -> None:
    """Otherwise eight clients with a hundred streams each could hold eight hundred requests of a MiB."""
    empty_settings = b"\0\0\0\x04\0\0\0\0\0"
    for port in (lab.gateway.port, lab.gateway.control_port):
        assert b"HTTP/1.1 400" in lab.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings, port)
    assert is_answered(lab)


def test_the_maximum_of_connections_stays_below_the_memory_limit(lab: RunningGateway) -> None:
    """256 connections send pipelined requests of a MiB each to a server that answers none of them."""
    body = json.dumps({"model": "qwen", "max_tokens": 2, "x": "y" * (MIB - 200)}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    sources = ["127.0.0.97", CLIENT]
    assert all(is_answered(lab, source) for source in sources)
    with open_connections(lab.gateway.port, sources, b"", 256) as links:
        held_mib = resident_after_sending_mib(lab, links, 3 * (head.encode() + body))
        assert held_mib < (render.max_memory_bytes(lab.gateway) + render.PROCESS_BYTES) / MIB
        socket_endpoint = Endpoint(lab.gateway.port, sockets=lab.sockets)
        assert haproxy_sockets.send_request(socket_endpoint, "/v1/models", key=KEY, timeout_s=DEADLINE_S).status == 200
    wait_until(lambda: is_answered(lab))

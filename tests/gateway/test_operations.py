"""Draining and returning a server in Debian's real HAProxy: the allowed hosts, and the state after a reload."""

import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import operations, render, statistics
from sparkwright.gateway.listeners import MASTER_SOCKET
from sparkwright.host.gateway import container, haproxy_sockets, server_operations
from sparkwright.host.gateway.server_operations import GatewayError
from sparkwright.project.gateway_servers import fingerprint
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
from tests.project.test_gateway_routes import write_certificate

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RunningGateway]:
    servers = [StreamServer("one"), StreamServer("two")]
    with run_gateway(tmp_path, build_gateway(build_model("org/qwen", *servers))) as running_gateway:
        running_gateway.up("org/qwen")
        yield running_gateway
    for server in servers:
        server.shutdown()


def host_endpoint(lab: RunningGateway, name: str) -> server_operations.Gateway:
    return server_operations.Gateway("lab", "127.0.0.1", lab.gateway.control_port, tls=False, server=name)


def change_server(lab: RunningGateway, name: str, action: str, key: str = "") -> None:
    endpoint, key = host_endpoint(lab, name), key or HOST_KEYS[name]
    for server in server_operations.list_servers(endpoint, key):
        server_operations.send_action(endpoint, key, action, server)


def server_state(lab: RunningGateway, name: str) -> str:
    (server,) = server_operations.list_servers(host_endpoint(lab, name), HOST_KEYS[name.partition(":")[0]])
    return server.state


def test_a_host_drains_and_returns_its_own_server(lab: RunningGateway) -> None:
    change_server(lab, "one", operations.DRAIN)
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("draining", "up")
    assert {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(6)} == {"two"}
    change_server(lab, "one", operations.READY)
    assert server_state(lab, "one") == "up"


def test_a_gateway_that_shows_another_certificate_is_told_no_key(tmp_path: Path) -> None:
    for name in ("lab", "other"):
        write_certificate(tmp_path, name)
    pem = (tmp_path / "lab.pem").read_text() + (tmp_path / "lab.key").read_text()
    fingerprints = {name: fingerprint((tmp_path / f"{name}.pem").read_text()) for name in ("lab", "other")}
    server = StreamServer("one")
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server), tls=True), pem) as running_gateway:
        endpoint = server_operations.Gateway(
            "lab", "127.0.0.1", running_gateway.gateway.control_port, True, "one", fingerprints["lab"]
        )
        assert [server.name for server in server_operations.list_servers(endpoint, HOST_KEYS["one"])] == ["one"]
        with pytest.raises(GatewayError, match="presented an unexpected certificate"):
            server_operations.list_servers(replace(endpoint, certificate=fingerprints["other"]), HOST_KEYS["one"])
        with pytest.raises(GatewayError, match="could not be read on the laptop"):
            server_operations.list_servers(replace(endpoint, certificate=""), HOST_KEYS["one"])
        logged = (running_gateway.folder / "log").read_text()
    assert logged.count("hosts/<lua.operate>") == 1, "a gateway of unknown identity was sent a request"
    server.shutdown()


@pytest.mark.parametrize("key", [HOST_KEYS["two"], KEY, "x", "00" * 32])
def test_no_one_else_drains_it(lab: RunningGateway, key: str) -> None:
    with pytest.raises(GatewayError):
        change_server(lab, "one", operations.DRAIN, key)
    assert server_state(lab, "one") == "up"


DRAIN_ONE, DRAIN_TWO = (operations.operation_url(operations.DRAIN, "org::qwen", name) for name in ("one", "two"))


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("PUT", DRAIN_TWO, None),
        ("PUT", f"{DRAIN_ONE}?s=two", None),
        ("PUT", f"{DRAIN_ONE}/", None),
        ("PUT", f"{operations.URL_PREFIX}/org::qwen/one/../two/drain", None),
        ("PUT", DRAIN_ONE.replace("one", "%6fne"), None),
        ("PUT", f"http://lab{DRAIN_ONE}", None),
        ("PUT", DRAIN_ONE, b"action=drain&b=org::qwen&s=one\0&s=two"),
        ("PUT", DRAIN_ONE, iter([b"x"])),
        ("POST", DRAIN_ONE, None),
        ("GET", DRAIN_ONE, None),
        ("PUT", operations.operation_url("shutdown", "org::qwen", "one"), None),
        ("POST", operations.URL_PREFIX, b"action=drain&b=org::qwen&s=one\0&s=two"),
        ("GET", f"{operations.URL_PREFIX};csv", None),
        ("GET", "/v1/models", None),
        ("GET", "/" + "x" * 100_000, None),
    ],
)
def test_nothing_else_is_done_for_a_host(lab: RunningGateway, method: str, url: str, body: Any) -> None:
    answer = lab.control(method, url, body, key=HOST_KEYS["one"])
    assert (answer.status, answer.json["error"]["code"]) == (403, "not_allowed")
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("up", "up")


@pytest.mark.parametrize(
    "url", [f"{DRAIN_ONE}\0", f"{DRAIN_ONE}\0/../two/drain", f"{DRAIN_ONE} x", DRAIN_ONE.replace("one", "\xff")]
)
def test_bytes_that_no_url_has_are_no_request(lab: RunningGateway, url: str) -> None:
    head = f"PUT {url} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {HOST_KEYS['one']}\r\n\r\n"
    answer = lab.raw(head.encode("latin-1"), lab.gateway.control_port)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")), answer
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("up", "up")


def test_a_body_that_ends_at_a_null_byte_drains_nobody_at_the_clients_port(lab: RunningGateway) -> None:
    """HAProxy's own statistics page, which reads on behind the byte, is not reachable."""
    body = b"action=drain&b=org::qwen&s=one\0&s=two"
    for path in (operations.URL_PREFIX, f"{operations.URL_PREFIX};csv", "/haproxy?stats", "/;csv"):
        assert lab.ask("POST", path, body, key=HOST_KEYS["one"]).status == 401
        assert lab.ask("POST", path, body).json["error"]["code"] == "unknown_url"
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("up", "up")


def test_a_host_is_told_of_its_own_servers_only(lab: RunningGateway) -> None:
    (row,) = lab.control("GET", operations.URL_PREFIX, key=HOST_KEYS["two"]).json["servers"]
    assert (row["backend"], row["server"], row["running"]) == ("org::qwen", "two", 0)
    assert row["status"].startswith("UP") and {*row} == {"backend", "server", "status", "running", "requests"}
    assert lab.control("GET", operations.URL_PREFIX, key=KEY).json["error"]["code"] == "invalid_operator_key"


def test_a_hosts_key_is_none_of_a_clients(lab: RunningGateway) -> None:
    assert lab.control("POST", "/v1/chat/completions", {"model": "org/qwen"}, key=HOST_KEYS["one"]).status == 403
    assert lab.chat({"model": "org/qwen"}, key=HOST_KEYS["one"]).status == 401
    assert lab.ask("GET", "/metrics", key=HOST_KEYS["one"]).status == 401


def test_a_reload_returns_nobody_and_takes_the_ports_that_come(lab: RunningGateway) -> None:
    change_server(lab, "one", operations.DRAIN)
    other = StreamServer("one")
    config = (lab.folder / render.CONFIG_FILE).read_text()
    before = next(upstream.port for upstream in lab.gateway.models[0].upstreams if upstream.name == "one")
    config = config.replace(f"127.0.0.1:{before}", f"127.0.0.1:{other.port}")
    reload_gateway(lab, config, "after")
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("draining", "up")
    change_server(lab, "one", operations.READY)
    change_server(lab, "two", operations.DRAIN)
    assert lab.chat({"model": "org/qwen"}).status == 200
    assert other.seen, "the server at the port of the new configuration was not asked"
    other.shutdown()


def reload_gateway(lab: RunningGateway, config: str, name: str) -> None:
    """Reload HAProxy with this configuration, as `gateway.deploy` does it."""
    container.save_states(lab.sockets, lab.folder, config)
    (lab.folder / render.CONFIG_FILE).write_text(config.replace("lab @DIGEST@", f"lab {name}"))
    until_s = time.monotonic() + DEADLINE_S
    while haproxy_sockets.running_digest(lab.sockets) != name:
        assert time.monotonic() < until_s
        haproxy_sockets.send_command(
            lab.sockets, "reload", MASTER_SOCKET
        )  # one in the first moments of HAProxy may be lost
        time.sleep(0.3)
    container.clear_states(lab.folder)


def test_a_request_whose_body_comes_while_the_gateway_is_reloaded_is_answered(lab: RunningGateway) -> None:
    """The previous process considers every backend empty from then on, and has requests to finish."""
    ahead, rest = b'{"messages": [], "mo', b'del": "org/qwen"}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", lab.gateway.port), DEADLINE_S) as link:
        link.sendall(head.encode() + f"Content-Length: {len(ahead + rest)}\r\n\r\n".encode() + ahead)
        assert lab.chat({"model": "org/qwen"}).status == 200, "the one before has been accepted"
        reload_gateway(lab, (lab.folder / render.CONFIG_FILE).read_text(), "after")
        link.sendall(rest)
        assert link.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_server_that_takes_another_ones_requests_gets_none_before_and_keeps_them_over_a_reload(
    tmp_path: Path,
) -> None:
    first, second = StreamServer("one"), StreamServer("one::interim")
    upstream_model = build_model("org/qwen", first)
    place = replace(upstream_model, upstreams=(replace(upstream_model.upstreams[0], interim_port=second.port),))
    with run_gateway(tmp_path, build_gateway(place)) as lab:
        lab.up("org/qwen")
        config = (lab.folder / render.CONFIG_FILE).read_text()
        assert server_state(lab, "one::interim") == "maintenance" and not second.seen
        (row,) = statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))
        assert [server["host"] for server in row["servers"]] == ["one"], "an empty place is no server"
        change_server(lab, "one::interim", operations.READY, HOST_KEYS["one"])
        change_server(lab, "one", operations.DRAIN)
        for name in ("first", "second"):
            assert {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(4)} == {"one::interim"}
            reload_gateway(lab, config, name)
        assert (server_state(lab, "one"), server_state(lab, "one::interim")) == ("draining", "up")
        change_server(lab, "one", operations.READY)
        change_server(lab, "one::interim", operations.MAINTENANCE, HOST_KEYS["one"])
        reload_gateway(lab, config, "third")
        assert (server_state(lab, "one"), server_state(lab, "one::interim")) == ("up", "maintenance")
        assert {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(4)} == {"one"}
    for item in (first, second):
        item.shutdown()


def test_a_gateway_that_does_not_answer_is_a_sentence(lab: RunningGateway) -> None:
    lab.process.kill()
    lab.process.wait()
    with pytest.raises(GatewayError, match="does not answer"):
        change_server(lab, "one", operations.DRAIN)

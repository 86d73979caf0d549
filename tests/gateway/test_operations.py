"""Draining a server and returning it in a real HAProxy: permissions of hosts, and states after a reload."""

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import operations, render, statistics
from sparkwright.gateway.listeners import MASTER_SOCKET
from sparkwright.host.gateway import container, haproxy_sockets, server_operations
from sparkwright.host.gateway.server_operations import GatewayError
from sparkwright.project.gateway_servers import fingerprint
from tests.gateway.loopback import HOST_KEYS, KEY, RunningGateway, build_gateway, build_model, run_gateway, serve_models
from tests.gateway.servers import CHAT, DEADLINE_S, StreamServer, needs_haproxy
from tests.project.test_gateway_routes import write_certificate
from tests.waiting import wait_until

pytestmark = needs_haproxy


@pytest.fixture
def lab(tmp_path: Path, server: StreamServer, other: StreamServer) -> Iterator[RunningGateway]:
    with serve_models(tmp_path, build_model("org/qwen", server, other)) as lab:
        yield lab


def change_server(lab: RunningGateway, name: str, action: str, key: str = "") -> None:
    endpoint, key = lab.endpoint(name), key or HOST_KEYS[name]
    for server in server_operations.list_servers(endpoint, key):
        server_operations.send_action(endpoint, key, action, server)


def server_state(lab: RunningGateway, name: str) -> str:
    (server,) = server_operations.list_servers(lab.endpoint(name), HOST_KEYS[name.partition(":")[0]])
    return server.state


def assert_both_up(lab: RunningGateway) -> None:
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("up", "up")


def answering_servers(lab: RunningGateway) -> set[str]:
    """Return the names of the servers that answer six requests."""
    return {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(6)}


def test_a_host_drains_and_returns_its_own_server(lab: RunningGateway) -> None:
    change_server(lab, "one", operations.DRAIN)
    assert (server_state(lab, "one"), server_state(lab, "two")) == ("draining", "up")
    assert answering_servers(lab) == {"two"}
    change_server(lab, "one", operations.READY)
    assert server_state(lab, "one") == "up"


def test_a_gateway_with_an_unexpected_certificate_gets_no_key(tmp_path: Path, server: StreamServer) -> None:
    for name in ("lab", "other"):
        write_certificate(tmp_path, name)
    pem = (tmp_path / "lab.pem").read_text() + (tmp_path / "lab.key").read_text()
    fingerprints = {name: fingerprint((tmp_path / f"{name}.pem").read_text()) for name in ("lab", "other")}
    with run_gateway(tmp_path, build_gateway(build_model("qwen", server), tls=True), pem) as lab:
        endpoint = replace(lab.endpoint(), tls=True, certificate=fingerprints["lab"])
        assert [server.name for server in server_operations.list_servers(endpoint, HOST_KEYS["one"])] == ["one"]
        for certificate, message in (
            (fingerprints["other"], "presented an unexpected certificate"),
            ("", "could not be read on the laptop"),
        ):
            with pytest.raises(GatewayError, match=message):
                server_operations.list_servers(replace(endpoint, certificate=certificate), HOST_KEYS["one"])
        log = (lab.folder / "log").read_text()
    assert log.count("hosts/<lua.operate>") == 1, "a request was sent to a gateway of unknown identity"


@pytest.mark.parametrize(
    "key", [HOST_KEYS["two"], KEY, "x", "00" * 32], ids=["another host", "client", "short key", "unknown key"]
)
def test_no_other_key_drains_a_server(lab: RunningGateway, key: str) -> None:
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
def test_other_requests_of_a_host_are_refused(lab: RunningGateway, method: str, url: str, body: Any) -> None:
    assert lab.control(method, url, body, key=HOST_KEYS["one"]).error == (403, "not_allowed")
    assert_both_up(lab)


@pytest.mark.parametrize(
    "url", [f"{DRAIN_ONE}\0", f"{DRAIN_ONE}\0/../two/drain", f"{DRAIN_ONE} x", DRAIN_ONE.replace("one", "\xff")]
)
def test_a_url_with_invalid_bytes_is_refused(lab: RunningGateway, url: str) -> None:
    head = f"PUT {url} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {HOST_KEYS['one']}\r\n\r\n"
    answer = lab.raw(head.encode("latin-1"), lab.gateway.control_port)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")), answer
    assert_both_up(lab)


def test_the_port_of_clients_does_not_drain_servers(lab: RunningGateway) -> None:
    """HAProxy's statistics page, which continues to read after a null byte, is not reachable."""
    body = b"action=drain&b=org::qwen&s=one\0&s=two"
    for path in (operations.URL_PREFIX, f"{operations.URL_PREFIX};csv", "/haproxy?stats", "/;csv"):
        assert lab.ask("POST", path, body, key=HOST_KEYS["one"]).status == 401
        assert lab.ask("POST", path, body).json["error"]["code"] == "unknown_url"
    assert_both_up(lab)


def test_a_host_can_list_only_its_own_servers(lab: RunningGateway) -> None:
    (row,) = lab.control("GET", operations.URL_PREFIX, key=HOST_KEYS["two"]).json["servers"]
    assert (row["backend"], row["server"], row["running"]) == ("org::qwen", "two", 0)
    assert row["status"].startswith("UP") and {*row} == {"backend", "server", "status", "running", "requests"}
    assert lab.control("GET", operations.URL_PREFIX, key=KEY).json["error"]["code"] == "invalid_operator_key"


def test_the_key_of_a_host_is_refused_for_requests_of_clients(lab: RunningGateway) -> None:
    assert lab.control("POST", CHAT, {"model": "org/qwen"}, key=HOST_KEYS["one"]).status == 403
    assert lab.chat({"model": "org/qwen"}, key=HOST_KEYS["one"]).status == 401
    assert lab.ask("GET", "/metrics", key=HOST_KEYS["one"]).status == 401


def reload_gateway(lab: RunningGateway, config: str, name: str) -> None:
    """Reload HAProxy with this configuration, as `gateway.deploy` does."""
    container.save_states(lab.sockets, lab.folder, config)
    (lab.folder / render.CONFIG_FILE).write_text(config.replace("lab @DIGEST@", f"lab {name}"))
    until_s = time.monotonic() + DEADLINE_S
    while haproxy_sockets.running_digest(lab.sockets) != name:
        assert time.monotonic() < until_s
        haproxy_sockets.send_command(lab.sockets, "reload", MASTER_SOCKET)  # the first one may be lost
        time.sleep(0.3)
    container.clear_states(lab.folder)


def test_a_reload_keeps_drained_servers_and_uses_new_ports(lab: RunningGateway, server: StreamServer) -> None:
    change_server(lab, "one", operations.DRAIN)
    with StreamServer("one") as replacement:
        config = (lab.folder / render.CONFIG_FILE).read_text()
        reload_gateway(lab, config.replace(f"127.0.0.1:{server.port}", f"127.0.0.1:{replacement.port}"), "after")
        assert (server_state(lab, "one"), server_state(lab, "two")) == ("draining", "up")
        change_server(lab, "one", operations.READY)
        change_server(lab, "two", operations.DRAIN)
        assert lab.chat({"model": "org/qwen"}).status == 200
        assert replacement.seen, "the server at the port of the new configuration got no request"


def test_a_request_whose_body_arrives_after_a_reload_is_answered(lab: RunningGateway) -> None:
    """The previous process finishes its requests while it considers every backend empty."""
    begin, rest = b'{"messages": [], "mo', b'del": "org/qwen"}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", lab.gateway.port), DEADLINE_S) as link:
        link.sendall(head.encode() + f"Content-Length: {len(begin + rest)}\r\n\r\n".encode() + begin)
        assert lab.chat({"model": "org/qwen"}).status == 200  # so the request before it has been accepted
        reload_gateway(lab, (lab.folder / render.CONFIG_FILE).read_text(), "after")
        link.sendall(rest)
        assert link.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("cause", ["down", "replaced"])
def test_a_request_that_waits_during_a_reload_is_answered_once_its_server_is_up(
    tmp_path: Path, server: StreamServer, cause: str
) -> None:
    with (
        serve_models(tmp_path, build_model("org/qwen", server), waits=True) as lab,
        ThreadPoolExecutor(1) as pool,
    ):
        if cause == "down":
            server.healthy = False
        else:
            change_server(lab, "one", operations.MAINTENANCE)
        lab.up()
        answer = pool.submit(lab.chat, {"model": "org/qwen"})
        wait_until(lambda: statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))[0]["queued"] == 1)
        reload_gateway(lab, (lab.folder / render.CONFIG_FILE).read_text(), "after")
        assert not server.seen
        if cause == "down":
            server.healthy = True
        else:
            change_server(lab, "one", operations.READY)
        assert answer.result().json["from"] == "one"


def test_an_interim_server_gets_requests_only_while_it_is_ready_also_after_a_reload(
    tmp_path: Path, server: StreamServer
) -> None:
    model = build_model("org/qwen", server)
    with contextlib.ExitStack() as stack:
        interim = stack.enter_context(StreamServer("one::interim"))
        upstream = replace(model.upstreams[0], interim_port=interim.port)
        lab = stack.enter_context(serve_models(tmp_path, replace(model, upstreams=(upstream,))))
        config = (lab.folder / render.CONFIG_FILE).read_text()
        assert server_state(lab, "one::interim") == "maintenance" and not interim.seen
        (row,) = statistics.model_statistics(haproxy_sockets.read_statistics(lab.sockets))
        assert [server["host"] for server in row["servers"]] == ["one"]
        change_server(lab, "one::interim", operations.READY, HOST_KEYS["one"])
        change_server(lab, "one", operations.DRAIN)
        for name in ("first", "second"):
            assert answering_servers(lab) == {"one::interim"}
            reload_gateway(lab, config, name)
        assert (server_state(lab, "one"), server_state(lab, "one::interim")) == ("draining", "up")
        change_server(lab, "one", operations.READY)
        change_server(lab, "one::interim", operations.MAINTENANCE, HOST_KEYS["one"])
        reload_gateway(lab, config, "third")
        assert (server_state(lab, "one"), server_state(lab, "one::interim")) == ("up", "maintenance")
        assert answering_servers(lab) == {"one"}


def test_operations_of_a_stopped_gateway_fail_with_a_sentence(lab: RunningGateway) -> None:
    lab.process.kill()
    lab.process.wait()
    with pytest.raises(GatewayError, match="does not answer"):
        change_server(lab, "one", operations.DRAIN)

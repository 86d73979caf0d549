"""Every client of the package against the same hostile servers.

Each gives up at its deadline and at its size, and fails with its own message, whether the server drips or sends an invalid
answer.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.stores import model_config
from sparkwright.engines import engine
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.health import notify, snapshot
from sparkwright.health.webhook_formats import Post
from sparkwright.host import peers
from sparkwright.host.cluster import channel, wire
from sparkwright.host.containers import engine_socket
from sparkwright.host.gateway import drain_record, haproxy_sockets, server_operations
from sparkwright.host.images import image_copy, registry_client
from sparkwright.host.models import hub
from sparkwright.host.ollama import Ollama, OllamaAbsent, OllamaBusy
from sparkwright.measure import http_probe, stream
from sparkwright.protocol.cluster import Cluster
from sparkwright.secret import Secret
from sparkwright.transport.connection import MinimumRate, TransportError
from sparkwright.trust.image_name import ImageReference
from sparkwright.trust.redact import Redactor
from tests.certificate import write_self_signed
from tests.modules.context import RecordingContext
from tests.transport.servers import OK, Script, Server, drip_script, read_head, send_script, serving

LIMIT_S = 0.25
VLLM = engine.get_or_default("vllm").http


@dataclass(frozen=True)
class Client:
    """A client in the package."""

    #: the package's call to a server
    ask: Callable[[Server, Path], Any]
    #: exceptions that it may raise; otherwise it returns something falsy or an error
    fails: tuple[type[Exception], ...] = ()
    #: the time limits of the package for such a server, which a test shortens
    limits: tuple[tuple[Any, str], ...] = ()
    unix: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def make_gateway(server: Server) -> server_operations.Gateway:
    return server_operations.Gateway("lab", "127.0.0.1", server.port, tls=False, server="one")


def read_docker_log(server: Server, _: Path) -> Any:
    pieces = engine_socket.stream_log(f"tcp://127.0.0.1:{server.port}", "/containers/x/logs", LIMIT_S, framed=True)
    return None if pieces is None else b"".join(pieces)


def make_snapshot(url: str) -> snapshot.Snapshot:
    return snapshot.Snapshot(0.0, url=url, health_status=200)


CLIENTS: dict[str, Client] = {
    "a gateway's table": Client(
        lambda server, _: server_operations.list_servers(make_gateway(server), "key"),
        (server_operations.GatewayError,),
        ((server_operations, "REQUEST_TIMEOUT_S"),),
    ),
    "draining at a gateway": Client(
        lambda server, _: server_operations.send_action(
            make_gateway(server), "key", "drain", server_operations.RoutedServer("b", "one", "up", 0)
        ),
        (server_operations.GatewayError,),
        ((server_operations, "REQUEST_TIMEOUT_S"),),
    ),
    "a gateway's client": Client(
        lambda server, _: (
            haproxy_sockets.send_request(
                haproxy_sockets.Endpoint(server.port), "/v1/models", {"a": 1}, timeout_s=LIMIT_S
            ).data
        )
    ),
    "HAProxy's admin socket": Client(
        lambda _, folder: haproxy_sockets.running_digest(folder),
        limits=((haproxy_sockets, "COMMAND_TIMEOUT_S"),),
        unix=True,
    ),
    "HAProxy's statistics": Client(
        lambda _, folder: haproxy_sockets.read_statistics(folder),
        limits=((haproxy_sockets, "COMMAND_TIMEOUT_S"),),
        unix=True,
    ),
    "a webhook": Client(
        lambda server, _: notify.post_with_retries(server.url, Post(b"{}", {}), pause=lambda seconds: None),
        (notify.NotificationFailed,),
        ((notify, "RESPONSE_TIMEOUT_S"),),
    ),
    "Ollama": Client(lambda server, _: Ollama(server.url, LIMIT_S).list_loaded(), (OllamaAbsent, OllamaBusy)),
    "a server's answer": Client(
        lambda server, _: http_probe.send_request(server.url, "/v1/models", body={"a": 1}, timeout_s=LIMIT_S).json()
    ),
    "a server's version": Client(lambda server, _: http_probe.query_version(VLLM, server.url, timeout_s=LIMIT_S)),
    "a measured stream": Client(
        lambda server, _: stream.measure_stream(server.url, {"a": 1}, timeout_s=LIMIT_S, cap_s=LIMIT_S).tokens,
        (stream.StreamError,),
    ),
    "the health of a status": Client(
        lambda server, _: snapshot._query_health(VLLM, server.url) != 200, limits=((snapshot, "HEALTH_TIMEOUT_S"),)
    ),
    "the traffic of a status": Client(
        lambda server, _: snapshot.read_traffic({"spec": {}}, make_snapshot(server.url)),
        limits=((snapshot, "HEALTH_TIMEOUT_S"),),
    ),
    "a container of Docker's": Client(
        lambda server, _: engine_socket.inspect(f"tcp://127.0.0.1:{server.port}", "x", LIMIT_S), (SparkwrightError,)
    ),
    "Docker's containers": Client(
        lambda server, _: engine_socket.list_containers(f"tcp://127.0.0.1:{server.port}", LIMIT_S), (SparkwrightError,)
    ),
    "Docker's version": Client(
        lambda server, _: engine_socket.api_version(f"tcp://127.0.0.1:{server.port}", LIMIT_S), (TransportError,)
    ),
    "a log of Docker's": Client(read_docker_log, (TransportError, ValueError)),
    "a peer": Client(lambda server, _: peers.ping(server.url, {}), limits=((peers, "REACH_TIMEOUT_S"),)),
    "the hub's config of a model": Client(
        lambda server, _: model_config.load_config("org/model"), (SparkwrightError,), ((model_config, "TIMEOUT_S"),)
    ),
    "a hub": Client(
        lambda server, _: hub.fetch_bytes(hub.Source(server.url.rstrip("/"), "org/model", "c" * 40), f"{server.url}x"),
        (SparkwrightError,),
        ((hub, "MAX_SILENCE_S"), (hub, "RESPONSE_TIMEOUT_S")),
    ),
    "a registry": Client(
        lambda server, _: registry_client.RegistryHttp(
            ImageReference.parse(f"127.0.0.1:{server.port}/x:1"), insecure=True
        ).get("manifests/1", accept="*/*", max_bytes=10_000),
        (SparkwrightError,),
        ((registry_client, "DOCUMENT_TIMEOUT_S"),),
    ),
}
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
#: nothing here is an answer that a client could take for a good one
HOSTILE: dict[str, Script] = {
    "another protocol": send_script(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "nothing": send_script(b""),
    "half a header": send_script(OK + b"Content-Le"),
    "half a body": send_script(OK + b"Content-Length: 90\r\n\r\nbody"),
    "half a chunk": send_script(CHUNKED + b"9\r\nbody"),
    "an endless header": send_script(OK + b"A: " + b"a" * 2**22),
    "a body of exabytes": send_script(OK + b"Content-Length: 999999999999999999\r\n\r\n"),
    "bytes that are no text": send_script(OK + b"Content-Length: 256\r\n\r\n" + bytes(range(256))),
    "JSON that is nested too deep": send_script(OK + b"\r\n" + b"[" * 100_000),
    "rows without end": send_script(OK + b"\r\n# a,b,c\r\n" + b"a,b,c\n" * 100_000),
}
DRIPPING: dict[str, Script] = {
    "its header": drip_script(OK + b"A: "),
    "interim responses": drip_script(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "its body": drip_script(OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "its chunks": drip_script(CHUNKED, b"1\r\n \r\n"),
}


def query_server(client: Client, script: Script, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Server]:
    """Return what the client makes of the server, and the server."""
    for module, name in client.limits:
        monkeypatch.setattr(module, name, LIMIT_S)
    path = folder / "admin.sock" if client.unix else None
    with serving(script, path=path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url.rstrip("/"))
        try:
            return client.ask(server, folder), server
        except client.fails:
            return None, server


@pytest.mark.parametrize("behaviour", HOSTILE)
@pytest.mark.parametrize("name", CLIENTS)
def test_invalid_answer_is_handled_by_every_client(
    name: str, behaviour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query_server(CLIENTS[name], HOSTILE[behaviour], tmp_path, monkeypatch)


@pytest.mark.parametrize("behaviour", DRIPPING)
@pytest.mark.parametrize("name", CLIENTS)
def test_slow_server_is_disconnected_at_the_deadline(
    name: str, behaviour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, server = query_server(CLIENTS[name], DRIPPING[behaviour], tmp_path, monkeypatch)
    assert not answer or answer is True
    assert server.left.wait(10), "the client stayed until the server ended"


def test_slow_measured_stream_over_tls_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = write_self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    for script in (DRIPPING["its header"], DRIPPING["its chunks"]):
        with serving(script, context=context) as server, contextlib.suppress(stream.StreamError):
            assert stream.measure_stream(server.url, {"a": 1}, timeout_s=0.5, cap_s=0.5).capped
        assert server.left.wait(10), "the client stayed until the server ended"
    with serving(drip_script(b"\x16\x03\x03\x40\x00", b"\x02")) as server, pytest.raises(stream.StreamError):
        stream.measure_stream(server.url.replace("http:", "https:"), {"a": 1}, timeout_s=0.5, cap_s=0.5)


def test_measured_stream_has_a_limit_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_PIECES", 1000)
    with (
        serving(send_script(CHUNKED + b"1\r\n\n\r\n" * 50_000)) as server,
        pytest.raises(stream.StreamError, match="1000 pieces"),
    ):
        stream.measure_stream(server.url, {"a": 1}, timeout_s=20, cap_s=20)


def test_slow_cluster_head_is_disconnected_after_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that can't join waits until its head has the reason, but no longer than for a goodbye."""
    monkeypatch.setattr(channel, "GOODBYE_TIMEOUT_S", LIMIT_S)
    token, nonce = Secret("5e" * 32), "0f" * 32

    def head(connection: socket.socket) -> None:
        connection.sendall(wire.build_greeting(nonce))
        claim = read_head(connection).strip()
        connection.sendall(wire.verify_claim(claim, nonce, cluster, token)[1])
        for _ in range(400):
            connection.sendall(b"a")
            threading.Event().wait(0.02)

    with serving(head) as server:
        cluster = Cluster("pair", 1, ("spark1", "spark2"), "127.0.0.1", server.port)
        member = channel.Channel(cluster, token, note=lambda text: None, redactor=Redactor([]))
        member.decline_to_join("no disk")
        assert server.left.wait(10), "the member stayed until the head ended"


def test_gateway_with_too_many_servers_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its answers is in time; there are just too many of them."""
    monkeypatch.setattr(drain_record, "ACTION_TIMEOUT_S", LIMIT_S)
    options: list[str] = []
    servers = [server_operations.RoutedServer(f"be_{n}", "one", "up", 0) for n in range(256)]
    monkeypatch.setattr(server_operations, "list_servers", lambda gateway, key: servers)

    def slow(gateway: server_operations.Gateway, key: str, action: str, server: server_operations.RoutedServer) -> None:
        options.append(server.backend)
        threading.Event().wait(LIMIT_S / 3)

    monkeypatch.setattr(server_operations, "send_action", slow)
    with pytest.raises(server_operations.GatewayError, match="took longer than"):
        drain_record.send_action(
            server_operations.Gateway("lab", "127.0.0.1", 1, tls=False, server="one"), "key", "drain"
        )
    assert len(options) < len(servers)


IMAGE = 1000


def copy_image(context: RecordingContext, script: Script) -> bytes:
    """Return what a copy of an image of IMAGE bytes takes from a peer."""
    with serving(script) as server:
        return b"".join(image_copy._stream_pieces(context, server.url.rstrip("/"), "spark1", IMAGE))


def test_image_stream_of_a_peer_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RecordingContext(tmp_path)
    assert copy_image(context, send_script(CHUNKED + b"3e8\r\n" + b"a" * IMAGE + b"\r\n0\r\n\r\n")) == b"a" * IMAGE
    with pytest.raises(image_copy.StreamBroken, match="broke off after 4 bytes: it ended its answer early"):
        copy_image(context, send_script(CHUNKED + b"4\r\nbody\r\n"))
    monkeypatch.setattr(image_copy, "MIN_RATE", MinimumRate(10_000, LIMIT_S))
    with pytest.raises(image_copy.StreamBroken, match="it sends less than 10000 bytes"):
        copy_image(context, drip_script(CHUNKED, b"1\r\na\r\n"))
    monkeypatch.setattr(image_copy, "FIRST_BYTE_S", LIMIT_S)
    with pytest.raises(image_copy.StreamBroken, match="does not answer"):
        copy_image(context, drip_script(OK + b"A: "))
    with pytest.raises(Failed, match="cannot export the image"):
        copy_image(context, send_script(b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n"))

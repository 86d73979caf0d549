"""Every client of the package against the same hostile servers, which send invalid answers, or valid ones without end.

Each client stops at its deadline and at its size limit, and fails with an error of its package.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.measure import http_probe, stream
from sparkwright.protocol.cluster import Cluster
from sparkwright.secret import Secret
from sparkwright.transport.connection import MinimumRate, TransportError
from sparkwright.trust.image_name import ImageReference
from sparkwright.trust.redact import Redactor
from tests.certificate import write_self_signed
from tests.modules.context import RecordingContext
from tests.transport.servers import CHUNKED, OK, Script, Server, drip_script, read_head, send_script, serving

LIMIT_S = 0.25
VLLM = engine.get_or_default("vllm").http


@dataclass(frozen=True)
class Client:
    #: calls a server
    query: Callable[[Server, Path], Any]
    #: exceptions that it may raise; otherwise it returns something falsy or an error
    errors: tuple[type[Exception], ...] = ()
    #: module of its time limits, which a test shortens
    module: Any = None
    limits: tuple[str, ...] = ()
    unix: bool = False


def build_gateway(port: int) -> server_operations.Gateway:
    return server_operations.Gateway("lab", "127.0.0.1", port, tls=False, server="one")


def list_routed_servers(server: Server, _: Path) -> Any:
    return server_operations.list_servers(build_gateway(server.port), "key")


def drain_server(server: Server, _: Path) -> Any:
    routed = server_operations.RoutedServer("b", "one", "up", 0)
    return server_operations.send_action(build_gateway(server.port), "key", "drain", routed)


def query_through_gateway(server: Server, _: Path) -> Any:
    endpoint = haproxy_sockets.Endpoint(server.port)
    return haproxy_sockets.send_request(endpoint, "/v1/models", {"a": 1}, timeout_s=LIMIT_S).data


def post_webhook(server: Server, _: Path) -> Any:
    return notify.post_with_retries(server.url, Post(b"{}", {}), pause=lambda seconds: None)


def measure_tokens(server: Server, _: Path) -> Any:
    return stream.measure_stream(server.url, {"a": 1}, timeout_s=LIMIT_S, cap_s=LIMIT_S).tokens


def read_traffic(server: Server, _: Path) -> Any:
    return snapshot.read_traffic(VerifiedState(), snapshot.Snapshot(0.0, url=server.url, health_status=200))


def fetch_from_hub(server: Server, _: Path) -> Any:
    return hub.fetch_bytes(hub.Source(server.url.rstrip("/"), "org/model", "c" * 40), f"{server.url}x")


def fetch_from_registry(server: Server, _: Path) -> Any:
    image = ImageReference.parse(f"127.0.0.1:{server.port}/x:1")
    registry = registry_client.RegistryHttp(image, insecure=True)
    return registry.get("manifests/1", accept="*/*", max_bytes=10_000)


def read_docker_log(server: Server, _: Path) -> Any:
    pieces = engine_socket.stream_log(docker_url(server), "/containers/x/logs", LIMIT_S, framed=True)
    return None if pieces is None else b"".join(pieces)


def docker_url(server: Server) -> str:
    return f"tcp://127.0.0.1:{server.port}"


GATEWAY_LIMIT = ((server_operations.GatewayError,), server_operations, ("REQUEST_TIMEOUT_S",))
HAPROXY_LIMIT: dict[str, Any] = {"module": haproxy_sockets, "limits": ("COMMAND_TIMEOUT_S",), "unix": True}
HEALTH_LIMIT = ((), snapshot, ("HEALTH_TIMEOUT_S",))
FAILURE = (SparkwrightError,)
CLIENTS: dict[str, Client] = {
    "gateway's table": Client(list_routed_servers, *GATEWAY_LIMIT),
    "gateway's drain": Client(drain_server, *GATEWAY_LIMIT),
    "gateway's client": Client(query_through_gateway),
    "HAProxy's admin socket": Client(lambda _, folder: haproxy_sockets.running_digest(folder), **HAPROXY_LIMIT),
    "HAProxy's statistics": Client(lambda _, folder: haproxy_sockets.read_statistics(folder), **HAPROXY_LIMIT),
    "webhook": Client(post_webhook, (notify.NotificationFailed,), notify, ("RESPONSE_TIMEOUT_S",)),
    "Ollama": Client(lambda server, _: Ollama(server.url, LIMIT_S).list_loaded(), (OllamaAbsent, OllamaBusy)),
    "server's answer": Client(
        lambda server, _: http_probe.send_request(server.url, "/v1/models", body={"a": 1}, timeout_s=LIMIT_S).json()
    ),
    "server's version": Client(
        lambda server, _: http_probe.query_version(http_probe.Target(VLLM, server.url), timeout_s=LIMIT_S)
    ),
    "measured stream": Client(measure_tokens, (stream.StreamError,)),
    "health of a status": Client(lambda server, _: snapshot._query_health(VLLM, server.url) == 200, *HEALTH_LIMIT),
    "traffic of a status": Client(read_traffic, *HEALTH_LIMIT),
    "container": Client(lambda server, _: engine_socket.inspect(docker_url(server), "x", LIMIT_S), FAILURE),
    "containers": Client(lambda server, _: engine_socket.list_containers(docker_url(server), LIMIT_S), FAILURE),
    "Docker's version": Client(
        lambda server, _: engine_socket.api_version(docker_url(server), LIMIT_S), (TransportError,)
    ),
    "container's log": Client(read_docker_log, (TransportError, ValueError)),
    "peer": Client(lambda server, _: peers.ping(server.url, {}), (), peers, ("REACH_TIMEOUT_S",)),
    "model's config": Client(
        lambda server, _: model_config.load_config("org/model"), FAILURE, model_config, ("TIMEOUT_S",)
    ),
    "hub": Client(fetch_from_hub, FAILURE, hub, ("MAX_SILENCE_S", "RESPONSE_TIMEOUT_S")),
    "registry": Client(fetch_from_registry, FAILURE, registry_client, ("DOCUMENT_TIMEOUT_S",)),
}
#: clients that accept any content
UNPARSED = ("hub", "HAProxy's statistics", "health of a status")
#: answers that no other client may accept
HOSTILE: dict[str, Script] = {
    "another protocol": send_script(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "nothing": send_script(b""),
    "half a header": send_script(OK + b"Content-Le"),
    "half a body": send_script(OK + b"Content-Length: 90\r\n\r\nbody"),
    "half a chunk": send_script(CHUNKED + b"9\r\nbody"),
    "an endless header": send_script(OK + b"A: " + b"a" * 2**22),
    "a body of exabytes": send_script(OK + b"Content-Length: 999999999999999999\r\n\r\n"),
    "bytes that are not text": send_script(OK + b"Content-Length: 256\r\n\r\n" + bytes(range(256))),
    "JSON nested too deeply": send_script(OK + b"\r\n" + b"[" * 100_000),
    "endless rows": send_script(OK + b"\r\n# a,b,c\r\n" + b"a,b,c\n" * 100_000),
}
DRIPPING: dict[str, Script] = {
    "its header": drip_script(OK + b"A: "),
    "interim responses": drip_script(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "its body": drip_script(OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "its chunks": drip_script(CHUNKED, b"1\r\n \r\n"),
}


def query_server(client: Client, script: Script, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Server]:
    """Return the client's result, and the server."""
    for name in client.limits:
        monkeypatch.setattr(client.module, name, LIMIT_S)
    path = folder / "admin.sock" if client.unix else None
    with serving(script, path=path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url.rstrip("/"))
        try:
            return client.query(server, folder), server
        except client.errors:
            return None, server


@pytest.mark.parametrize("behaviour", HOSTILE)
@pytest.mark.parametrize("name", CLIENTS)
def test_invalid_answer_is_handled_by_every_client(
    name: str, behaviour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, _ = query_server(CLIENTS[name], HOSTILE[behaviour], tmp_path, monkeypatch)
    assert not answer or name in UNPARSED


@pytest.mark.parametrize("behaviour", DRIPPING)
@pytest.mark.parametrize("name", CLIENTS)
def test_slow_server_is_disconnected_at_the_deadline(
    name: str, behaviour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, server = query_server(CLIENTS[name], DRIPPING[behaviour], tmp_path, monkeypatch)
    assert not answer
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
    """A member that can't join waits until its head has the reason, but no longer than GOODBYE_TIMEOUT_S."""
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


def test_gateway_with_too_many_servers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is in time, but there are too many of them."""
    monkeypatch.setattr(drain_record, "ACTION_TIMEOUT_S", LIMIT_S)
    drained: list[str] = []
    servers = [server_operations.RoutedServer(f"be_{n}", "one", "up", 0) for n in range(256)]
    monkeypatch.setattr(server_operations, "list_servers", lambda gateway, key: servers)

    def drain_slowly(gateway: object, key: str, action: str, server: server_operations.RoutedServer) -> None:
        drained.append(server.backend)
        threading.Event().wait(LIMIT_S / 3)

    monkeypatch.setattr(server_operations, "send_action", drain_slowly)
    with pytest.raises(server_operations.GatewayError, match="took longer than"):
        drain_record.send_action(build_gateway(1), "key", "drain")
    assert len(drained) < len(servers)


IMAGE_BYTES = 1000


def copy_image(context: RecordingContext, script: Script) -> bytes:
    with serving(script) as server:
        return b"".join(image_copy._stream_pieces(context, server.url.rstrip("/"), "spark1", IMAGE_BYTES))


def test_image_stream_of_a_peer_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RecordingContext(tmp_path)
    image = b"a" * IMAGE_BYTES
    assert copy_image(context, send_script(CHUNKED + b"3e8\r\n" + image + b"\r\n0\r\n\r\n")) == image
    with pytest.raises(image_copy.StreamBroken, match="interrupted after 4 bytes: it ended its answer early"):
        copy_image(context, send_script(CHUNKED + b"4\r\nbody\r\n"))
    monkeypatch.setattr(image_copy, "MIN_RATE", MinimumRate(10_000, LIMIT_S))
    with pytest.raises(image_copy.StreamBroken, match="it sends less than 10000 bytes"):
        copy_image(context, drip_script(CHUNKED, b"1\r\na\r\n"))
    monkeypatch.setattr(image_copy, "FIRST_BYTE_TIMEOUT_S", LIMIT_S)
    with pytest.raises(image_copy.StreamBroken, match="does not answer"):
        copy_image(context, drip_script(OK + b"A: "))
    with pytest.raises(Failed, match="cannot export the image"):
        copy_image(context, send_script(b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n"))

"""A real HAProxy on the loopback with the rendered configuration."""

import contextlib
import hashlib
import http.client
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkwright.engines import api_paths
from sparkwright.engines.http import Task
from sparkwright.engines.tasks import PROOFS
from sparkwright.engines.vllm.http import PATHS as VLLM
from sparkwright.gateway import clients, listeners, operations, render
from sparkwright.gateway.model import Gateway, Model, Upstream
from sparkwright.host.gateway import server_operations
from tests.gateway.servers import CHAT, LoopbackServer
from tests.gateway.servers import DEADLINE_S as DEADLINE_S
from tests.remote.sshd import free_port
from tests.waiting import wait_until

#: the paths that the servers' engine serves
PATHS = api_paths.merge_paths([VLLM])
KEY, SERVER_KEY = "client-key-client-key", "server-key-server-key"
#: the keys of the hosts behind the gateway
HOST_KEYS = {"one": "11" * 32, "two": "22" * 32}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """The status and the code of the error."""
        return self.status, self.json["error"]["code"]


@dataclass
class RunningGateway:
    """A running gateway. Its files are in `folder`, its sockets in `sockets` in the same folder."""

    gateway: Gateway
    folder: Path
    process: subprocess.Popen[bytes]
    held: list[http.client.HTTPConnection] = field(default_factory=list)

    @property
    def sockets(self) -> Path:
        return self.folder.with_name("sockets")

    def connection(self, port: int = 0) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.gateway.port, timeout=DEADLINE_S)
        self.held.append(connection)
        return connection

    def control(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Send a request to the port for hosts."""
        return self.ask(method, path, body, port=self.gateway.control_port, **more)

    def endpoint(self, server: str = "one") -> server_operations.Gateway:
        """Return the gateway as the host of this server knows it."""
        return server_operations.Gateway("lab", "127.0.0.1", self.gateway.control_port, tls=False, server=server)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = KEY,
        port: int = 0,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """Send a request. The body is sent as it is if bytes, in chunks if iterable, as JSON otherwise."""
        content = body if isinstance(body, bytes) or hasattr(body, "__next__") or body is None else json.dumps(body)
        authorization = {"Authorization": f"Bearer {key}"} if key else {}
        connection = self.connection(port)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a refused body may remain unread
            connection.request(
                method, path, content, {**authorization, **headers}, encode_chunked=hasattr(body, "__next__")
            )
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return answer

    def chat(self, body: Any, **more: Any) -> Answer:
        return self.ask("POST", CHAT, body, **more)

    def begin_stream(self, path: str = CHAT, key: str = KEY, **body: Any) -> http.client.HTTPResponse:
        """Return the response to a request for a stream, once it has begun."""
        connection = self.connection()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
        return connection.getresponse()

    def idle(self) -> None:
        """Wait until no request is counted: a client has its answer a moment before the server counts as free."""
        running_session = re.compile(rb"^haproxy_server_current_sessions\S* [1-9]", re.M)
        wait_until(lambda: not running_session.search(self.ask("GET", "/metrics").body), timeout_s=DEADLINE_S)

    def raw(self, sent: bytes, port: int = 0) -> bytes:
        """Return the answer to exactly these bytes."""
        with socket.create_connection(("127.0.0.1", port or self.gateway.port), timeout=DEADLINE_S) as link:
            link.sendall(sent)
            return b"".join(iter(lambda: link.recv(65536), b""))

    def up(self, *models: str) -> None:
        """Wait until /v1/models lists exactly these."""
        until_s = time.monotonic() + DEADLINE_S
        while (listed := sorted(item["id"] for item in self.ask("GET", "/v1/models").json["data"])) != sorted(models):
            assert time.monotonic() < until_s, listed
            time.sleep(0.05)


def build_model(name: str, *servers: LoopbackServer, slots: int = 4, key: str = "", task: Task = "generate") -> Model:
    upstreams = tuple(Upstream(server.name, "127.0.0.1", server.port, slots) for server in servers)
    body = {"model": name, "max_tokens": 1} if task == "generate" else PROOFS[task].request(name)[1]
    return Model(name, upstreams, 4096, json.dumps(body), key, task)


def client_key(client: str) -> str:
    return f"{client}-key-0123456789"


def build_gateway(*models: Model, **changes: Any) -> Gateway:
    """Return a gateway on free ports."""
    port = free_port()
    gateway = Gateway("lab", "127.0.0.1", port, port + 1, False, True, "none", 64, 2**20, 10, 60, 1, models, PATHS)
    return replace(gateway, **changes)


def _hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def run_gateway(folder: Path, rendered: Gateway, pem: str = "") -> Iterator[RunningGateway]:
    """Run HAProxy with the files of a gateway during the `with` block."""
    folder = folder / "files"
    for path in (folder, folder.with_name("sockets")):
        path.mkdir(exist_ok=True)
    client_hashes = {client.name: _hash_key(client_key(client.name)) for client in rendered.named_clients}
    files = {
        **render.render_files(rendered),
        render.CLIENT_KEYS_FILE: _hash_key(KEY) + "\n",
        clients.KEYS_FILE: clients.format_keys(client_hashes),
        render.SERVER_KEYS_FILE: "".join(f"{model.backend} {SERVER_KEY}\n" for model in rendered.models if model.key),
        operations.HOST_KEYS_FILE: clients.format_keys({name: _hash_key(key) for name, key in HOST_KEYS.items()}),
        listeners.CERTIFICATE_FILE: pem,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    command = ["haproxy", *render.HAPROXY_ARGUMENTS]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    running = RunningGateway(rendered, folder, process)
    try:
        _wait_until_listening(running)
        yield running
    finally:
        for connection in running.held:
            connection.close()
        process.kill()
        process.wait()


@contextlib.contextmanager
def serve_models(folder: Path, *models: Model, **changes: Any) -> Iterator[RunningGateway]:
    """Run a gateway of these models during the `with` block, which begins when all of them are up."""
    with run_gateway(folder, build_gateway(*models, **changes)) as gateway:
        gateway.up(*(name for model in models for name in model.names))
        yield gateway


def _wait_until_listening(running: RunningGateway) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while running.process.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", running.gateway.port), timeout=1).close()
            return
        time.sleep(0.02)
    raise AssertionError((running.folder / "log").read_text())

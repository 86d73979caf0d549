"""Servers on the loopback behind a real HAProxy with the rendered configuration."""

import contextlib
import hashlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import api_paths
from sparkwright.engines.http import Task
from sparkwright.engines.tasks import PROOFS
from sparkwright.engines.vllm.http import PATHS as VLLM
from sparkwright.gateway import clients, operations, render
from sparkwright.gateway.model import Gateway, Model, Upstream
from sparkwright.host.gateway import server_operations
from tests.remote.sshd import free_port
from tests.waiting import wait_until

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
#: the paths that the servers' engine serves
PATHS = api_paths.merge_paths([VLLM])
CHAT = "/v1/chat/completions"
KEY, SERVER_KEY = "client-key-client-key", "server-key-server-key"
#: the keys of the hosts behind the gateway
HOST_KEYS = {"one": "11" * 32, "two": "22" * 32}
DEADLINE_S = 20.0


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port, which a thread serves until the end of the `with` block or `shutdown`."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, name: str, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.name, self.go_on = name, threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client, or a check of HAProxy, has disconnected."""

    def __exit__(self, *error: Any) -> None:
        self.go_on.set()
        self.shutdown()
        super().__exit__(*error)


class JsonHandler(BaseHTTPRequestHandler):
    """The responses of the servers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words: Any) -> None:
        pass

    def read_json(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send_content(self, content: Any, status: int = 200) -> None:
        """Send a response. The content is sent as it is if bytes, as JSON otherwise."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, part: bytes) -> None:
        """Send a part of a stream; an empty one ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


class StreamServer(LoopbackServer):
    """A server that holds back the end of its answers until `go_on`, counts its running requests, and stores them."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _StreamHandler)
        self.go_on.set()
        self.part_sent, self.healthy = threading.Semaphore(0), True
        self.seen: list[dict[str, Any]] = []
        self.running, self.most = 0, 0
        self.mutex = threading.Lock()


class _StreamHandler(JsonHandler):
    server: StreamServer

    def do_POST(self) -> None:
        raw = self._body()
        body = json.loads(raw)
        if body.get("input") == "Say ok.":  # the token check of an embedding server
            ok = {"object": "list", "data": [{"index": 0, "embedding": [0.1]}]}
            here = self.server.healthy and self.path == "/v1/embeddings"
            self.send_content(ok if here else {"error": {"message": "no", "data": []}}, 200 if here else 500)
            return
        if body.get("max_tokens") == 1:  # the token check
            healthy = self.server.healthy
            self.send_content({"choices": []} if healthy else {"error": "no"}, 200 if healthy else 500)
            return
        with self.server.mutex:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
            self.server.seen.append(
                {"body": body, "raw": raw, "headers": {name.lower(): value for name, value in self.headers.items()}}
            )
        try:
            self._stream(body) if body.get("stream") else self._slowly(body)
        finally:
            with self.server.mutex:
                self.server.running -= 1

    def _slowly(self, body: dict[str, Any]) -> None:
        self.server.part_sent.release()
        self.server.go_on.wait(DEADLINE_S)
        usage = {"usage": body["usage"]} if "usage" in body else {}
        self.send_content({"choices": [{}], "from": self.server.name, **usage})

    def _stream(self, body: dict[str, Any]) -> None:
        self.begin_stream()
        self.send_chunk(b"data: 1\n\n")
        self.server.part_sent.release()
        self.server.go_on.wait(DEADLINE_S)
        for part in (*(body.get("parts") or ()), "data: [DONE]\n\n", ""):
            self.send_chunk(part.encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


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
        self, method: str, path: str, body: Any = None, key: str | None = KEY, port: int = 0, **headers: str
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
    client_hashes = {client.name: _hash_key(client_key(client.name)) for client in rendered.named}
    files = {
        **render.render_files(rendered),
        render.CLIENT_KEYS_FILE: _hash_key(KEY) + "\n",
        clients.KEYS_FILE: clients.format_keys(client_hashes),
        render.SERVER_KEYS_FILE: "".join(f"{model.backend} {SERVER_KEY}\n" for model in rendered.models if model.key),
        operations.OPERATORS_FILE: clients.format_keys({name: _hash_key(key) for name, key in HOST_KEYS.items()}),
        render.CERTIFICATE_FILE: pem,
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

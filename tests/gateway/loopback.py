"""Servers on the loopback behind a real HAProxy with the rendered configuration."""

import contextlib
import hashlib
import http.client
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sparkwright.engines import api_paths
from sparkwright.engines.http import Task
from sparkwright.engines.tasks import PROOFS
from sparkwright.engines.vllm.http import PATHS as VLLM
from sparkwright.gateway import clients, operations, render
from sparkwright.gateway.model import Gateway, Model, Upstream
from tests.remote.sshd import free_port

#: what its engine serves
PATHS = api_paths.merge_paths([VLLM])
KEY, SERVER_KEY = "client-key-client-key", "server-key-server-key"
#: of the hosts behind it
HOST_KEYS = {"one": "11" * 32, "two": "22" * 32}
DEADLINE_S = 20.0


class StreamServer(ThreadingHTTPServer):
    """A server that streams as `parts` allows it, counts its running requests, and stores what it received."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _StreamHandler)
        self.name = name
        self.go_on = threading.Event()
        self.go_on.set()
        self.part_sent, self.healthy = threading.Semaphore(0), True
        self.seen: list[dict[str, Any]] = []
        self.running, self.most = 0, 0
        self.mutex = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _StreamHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StreamServer

    def log_message(self, *words: Any) -> None:
        pass

    def do_POST(self) -> None:
        raw = self._body()
        body = json.loads(raw)
        if body.get("input") == "Say ok.":  # as the token check of a server of vectors asks
            ok = {"object": "list", "data": [{"index": 0, "embedding": [0.1]}]}
            here = self.server.healthy and self.path == "/v1/embeddings"
            self._json(ok if here else {"error": {"message": "no", "data": []}}, 200 if here else 500)
            return
        if body.get("max_tokens") == 1:
            self._json({"choices": []} if self.server.healthy else {"error": "no"}, 200 if self.server.healthy else 500)
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
        self._json({"choices": [{}], "from": self.server.name, **_usage(body)})

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b"data: 1\n\n")
        self.server.part_sent.release()
        self.server.go_on.wait(DEADLINE_S)
        for part in body.get("parts") or ():  # an answer's end as it comes, in pieces
            self._chunk(part.encode())
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def _json(self, data: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def _usage(body: dict[str, Any]) -> dict[str, Any]:
    return {"usage": body["usage"]} if "usage" in body else {}


@dataclass
class Answer:
    """An answer with status, headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RunningGateway:
    """A running gateway.

    `folder` holds its files; its sockets are in `sockets` beside it.
    """

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

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = KEY, port: int = 0, **headers: str
    ) -> Answer:
        """Send a request. The body is sent as it is if bytes, in chunks if iterable, as JSON otherwise."""
        content = body if isinstance(body, bytes) or hasattr(body, "__next__") or body is None else json.dumps(body)
        authorization = {"Authorization": f"Bearer {key}"} if key else {}
        connection = self.connection(port)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what refuses a body need not read it
            connection.request(
                method, path, content, {**authorization, **headers}, encode_chunked=hasattr(body, "__next__")
            )
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return answer

    def chat(self, body: Any, **more: Any) -> Answer:
        return self.ask("POST", "/v1/chat/completions", body, **more)

    def idle(self) -> None:
        """Wait until no request is counted any more: an answer is read a moment before its server counts as free."""
        until_s = time.monotonic() + DEADLINE_S
        running_session = re.compile(rb"^haproxy_server_current_sessions\S* [1-9]", re.M)
        while running_session.search(self.ask("GET", "/metrics").body):
            assert time.monotonic() < until_s

    def raw(self, sent: bytes, port: int = 0) -> bytes:
        """Return the answer to exactly these bytes."""
        with socket.create_connection(("127.0.0.1", port or self.gateway.port), timeout=DEADLINE_S) as link:
            link.sendall(sent)
            return b"".join(iter(lambda: link.recv(65536), b""))

    def up(self, *models: str) -> None:
        """Wait until /v1/models lists just these."""
        until_s = time.monotonic() + DEADLINE_S
        while (listed := sorted(item["id"] for item in self.ask("GET", "/v1/models").json["data"])) != sorted(models):
            assert time.monotonic() < until_s, listed
            time.sleep(0.05)


def build_model(name: str, *servers: StreamServer, slots: int = 4, key: str = "", task: Task = "generate") -> Model:
    """Return a model that these servers serve."""
    ups = tuple(Upstream(server.name, "127.0.0.1", server.port, slots) for server in servers)
    body = {"model": name, "max_tokens": 1} if task == "generate" else PROOFS[task].request(name)[1]
    return Model(name, ups, 4096, json.dumps(body), key, task)


def client_key(client: str) -> str:
    """Return the key of a client that has its own."""
    return f"{client}-key-0123456789"


def build_gateway(*models: Model, **changes: Any) -> Gateway:
    """Return a gateway on free ports."""
    port = free_port()
    usual = Gateway("lab", "127.0.0.1", port, port + 1, False, True, "none", 64, 2**20, 10, 60, 1, models, PATHS)
    return replace(usual, **changes)


@contextlib.contextmanager
def run_gateway(folder: Path, rendered: Gateway, pem: str = "") -> Iterator[RunningGateway]:
    """Run HAProxy with the files of a gateway during the `with` block."""
    folder = folder / "files"
    for path in (folder, folder.with_name("sockets")):
        path.mkdir(exist_ok=True)
    for name, text in render.render_files(rendered).items():
        (folder / name).write_text(text)
    (folder / render.CLIENT_KEYS_FILE).write_text(hashlib.sha256(KEY.encode()).hexdigest() + "\n")
    hashes = {client.name: hashlib.sha256(client_key(client.name).encode()).hexdigest() for client in rendered.named}
    (folder / clients.KEYS_FILE).write_text(clients.format_keys(hashes))
    (folder / render.SERVER_KEYS_FILE).write_text(
        "".join(f"{model.backend} {SERVER_KEY}\n" for model in rendered.models if model.key)
    )
    (folder / operations.OPERATORS_FILE).write_text(
        clients.format_keys({name: hashlib.sha256(key.encode()).hexdigest() for name, key in HOST_KEYS.items()})
    )
    (folder / render.CERTIFICATE_FILE).write_text(pem)
    command = ["haproxy", *render.HAPROXY_ARGUMENTS]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    running = RunningGateway(rendered, folder, process)
    try:
        _is_listening(running)
        yield running
    finally:
        for item in running.held:
            item.close()
        process.kill()
        process.wait()
        log.close()


def _is_listening(running: RunningGateway) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while running.process.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", running.gateway.port), timeout=1).close()
            return
        time.sleep(0.02)
    raise AssertionError((running.folder / "log").read_text())

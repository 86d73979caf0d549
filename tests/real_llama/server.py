"""A process of the real llama-server on loopback."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.remote.sshd import free_port

ROOT = Path(__file__).parents[2]
STARTS_WITHIN_S = 60.0
STOPS_WITHIN_S = 20.0
PAUSE_S = 0.005
REQUEST_TIMEOUT_S = 20.0
#: several threads busy-wait for each other, which takes minutes while other tests run
FEW_THREADS = ("--threads", "1", "--threads-http", "4")


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    #: parsed if it is JSON, else the text
    body: Any


@dataclass
class Server:
    """A started llama-server."""

    port: int
    log_file: Path
    process: subprocess.Popen[bytes]
    #: distinct answers of /health before it served
    loading: list[Answer]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def ask(self, path: str, body: Any = None, *, key: str = "") -> Answer:
        """GET, or POST if there is a body. Raises OSError without an answer."""
        with self._open(path, body, key) as answer:
            return Answer(answer.status, _decode_body(answer.read()))

    def stream(self, body: dict[str, Any], path: str = "/v1/chat/completions", key: str = "") -> Generator[Any]:
        """Yield the chunks of a streamed answer."""
        with self._open(path, {**body, "stream": True}, key) as answer:
            for line in answer:
                data = line.decode().removeprefix("data: ").strip()
                if data and data != "[DONE]":
                    yield json.loads(data)

    def wait_for_log(self, text: str) -> bool:
        """Wait until the log contains a text, or the process has exited. Returns True if it does."""
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while text not in self.log and self.exit_code is None and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)
        return text in self.log

    def wait_until_served(self) -> bool:
        """Wait until it serves or has exited. Returns True if it serves. Raises TimeoutError.

        An answer alone is not enough: llama-servers can share a port.
        """
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while self.exit_code is None and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                answer = self.ask("/health")
                if answer.status == 200 and self._listens():
                    return True
                self.loading += [] if answer in self.loading else [answer]
            time.sleep(PAUSE_S)
        if self.exit_code is None:
            raise TimeoutError(self.log)
        return False

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPS_WITHIN_S)

    def _listens(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = psutil.Process(self.process.pid).net_connections("tcp")
            return any(item.status == psutil.CONN_LISTEN and item.laddr.port == self.port for item in connections)
        return False

    def _open(self, path: str, body: Any, key: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(self.base_url + path, data, headers)
        try:
            return urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S)
        except urllib.error.HTTPError as refusal:
            return refusal


@contextlib.contextmanager
def running_server(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """Start a server with these words and a host and port; kill it at the end. folder: for its log."""
    port = free_port()
    address = ("--host", "127.0.0.1", "--port", str(port))
    command = [sys.executable, "-m", "tests.real_llama.llama_server", *FEW_THREADS, *words, *address]
    log_file = folder / f"llama-server-{port}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    server = Server(port, log_file, process, [])
    try:
        yield server
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def serving(folder: Path, model: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """Start a server with a model and wait until it serves; kill it at the end. folder: for its log."""
    with running_server(folder, "-m", str(model), *words, env=env) as server:
        assert server.wait_until_served(), server.log
        yield server


def _decode_body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")

"""One start of the real llama-server on loopback: waited for until it serves or is gone, asked, and stopped."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.remote.sshd import free_port

ROOT = Path(__file__).parents[2]
STARTS_WITHIN_S = 60.0
STOPS_WITHIN_S = 20.0
PAUSE_S = 0.005
ASK_S = 20.0
#: several threads wait for each other by spinning, which takes minutes beside other tests
QUIET = ("--threads", "1", "--threads-http", "4")


class Answer(NamedTuple):
    """status: of HTTP. body: parsed where it is JSON, else the text."""

    status: int
    body: Any


@dataclass
class Server:
    """loading: what it answered before it served, in order, each answer once."""

    port: int
    log_file: Path
    process: subprocess.Popen[bytes]
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
        """GET, or POST with a body. Raises OSError where nothing answers."""
        with self._open(path, body, key) as answer:
            return Answer(answer.status, _decode_body(answer.read()))

    def stream(
        self, body: dict[str, Any], *, path: str = "/v1/chat/completions", key: str = ""
    ) -> Iterator[dict[str, Any]]:
        """The chunks of one streamed answer, as they come."""
        with self._open(path, {**body, "stream": True}, key) as answer:
            for line in answer:
                data = line.decode().removeprefix("data: ").strip()
                if data and data != "[DONE]":
                    yield json.loads(data)

    def wait_for_log(self, text: str) -> bool:
        """Wait until this stands in its log, which a thread of its own writes, or it is gone; whether it does."""
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while text not in self.log and self.exit_code is None and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)
        return text in self.log

    def wait_until_served(self) -> bool:
        """Wait until it serves, or is gone; whether it serves. Raises TimeoutError.

        It would share its port with another llama-server, whose answer is not its own.
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
        """Send SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPS_WITHIN_S)

    def _listens(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            open_ones = psutil.Process(self.process.pid).net_connections("tcp")
            return any(item.status == psutil.CONN_LISTEN and item.laddr.port == self.port for item in open_ones)
        return False

    def _open(self, path: str, body: Any, key: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(self.base_url + path, data, headers)
        try:
            return urllib.request.urlopen(request, timeout=ASK_S)
        except urllib.error.HTTPError as refusal:
            return refusal


@contextlib.contextmanager
def running_server(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """The server with these words, host and port added, from its start on; killed in the end. folder: for its log."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tests.real_llama.llama_server",
        *QUIET,
        *words,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
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


def _decode_body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")

"""A host hands its proved model to others: it speaks as a small hub on its own addresses, to who knows a token.

The token is made for one copy and travels as every secret does. Only the files that are named are handed out, read only, from
where they were proved, never through a link that came later. Without the token nobody gets anything, and the connections at
one time are bounded. The process ends when its readers said so, or when nobody asked anything for a while. The bytes are not
encrypted on their way: what matters is that they arrive right, and every reader proves that by the lock's hashes.
"""

from __future__ import annotations

import ctypes
import hmac
import ipaddress
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sparkwright
from sparkwright.errors import Failed
from sparkwright.host.cluster import keys
from sparkwright.host.machine import Machine
from sparkwright.host.models.manifest import wanted
from sparkwright.protocol import cluster
from sparkwright.secret import Secret
from sparkwright.trust.names import PEER_URL, matched

TOKEN = "NEIGHBOUR_TOKEN"
COPY = "model copy"
IDLE_S = 120.0
START_S = 20.0
REACH_S = 3.0
DONE = "/done"
HERE = "/here"
PR_SET_NAME = 15
#: a copy uses some 30; strangers wait outside
CONNECTIONS = 256
RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{0,19})")


def token(secrets: Mapping[str, Secret]) -> Secret | None:
    """What a copy is asked for with: the token made for it; between the members of a cluster, one that their own gives.

    Their own never travels over HTTP: who hears this one can read the model, and nothing else.
    """
    if TOKEN in secrets or cluster.TOKEN not in secrets:
        return secrets.get(TOKEN)
    return keys.derived(secrets[cluster.TOKEN], COPY)


# -- the side that has the model ---------------------------------------------------------------------------------------


def hand_out(
    machine: Machine,
    folder: Path,
    model: tuple[str, str],
    files: Sequence[Mapping[str, Any]],
    token: Secret,
    readers: int,
    bind: str = "",
) -> int:
    """Start a process that hands files out, and outlives this one. model: id, commit. Returns its port."""
    rows = {file["path"]: [wanted(file), file["size_bytes"], os.path.realpath(folder / file["path"])] for file in files}
    request = {"id": model[0], "commit": model[1], "files": rows, "readers": readers, "bind": bind}
    top = str(Path(sparkwright.__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "sparkwright.host.models.peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **machine.env, "PYTHONPATH": top},
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps({**request, "token": token.reveal()}).encode() + b"\n")
    child.stdin.close()
    ready, _, _ = select.select([child.stdout], [], [], START_S)
    answer = child.stdout.readline() if ready else b""
    child.stdout.close()
    if not answer.strip().isdigit():
        child.kill()
        child.wait()
        raise Failed("cannot serve the model: the process exited immediately or did not start.")
    return int(answer)


def addresses() -> list[str]:
    """This host's own addresses, the fastest link's first; those of containers' bridges last."""
    import psutil

    speeds = {name: (stats.speed if stats.isup else -1) for name, stats in psutil.net_if_stats().items()}
    found = []
    for name, rows in psutil.net_if_addrs().items():
        for row in rows:
            if row.family == socket.AF_INET and not ipaddress.ip_address(row.address).is_loopback:
                bridge = name.startswith(("docker", "br-", "veth"))
                found.append((bridge, -speeds.get(name, 0), row.address))
    return [address for _, _, address in sorted(found)]


class _Hub(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self.readers = int(request["readers"])
        self.asked_s = time.monotonic()
        self.busy = 0
        self.guard = threading.Lock()
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__((request["bind"], 0), _Reader)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, as long as there are not too many."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def watch(self) -> None:
        """End when every reader is done, or when nobody asks any more."""
        while self.readers > 0 and (self.busy or time.monotonic() - self.asked_s < IDLE_S):
            time.sleep(0.2)
        self.shutdown()


class _Reader(BaseHTTPRequestHandler):
    """One connection. The paths are a hub's: ID/resolve/COMMIT/PATH, with HEAD, GET and Range."""

    server: _Hub
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.request['token']}".encode()):
            return self._empty(401)
        self.server.asked_s = time.monotonic()
        if path == HERE:
            return self._empty(204)
        if path == DONE:
            with self.server.guard:
                self.server.readers -= 1
            return self._empty(204)
        front = f"/{self.server.request['id']}/resolve/{self.server.request['commit']}/"
        name = path.removeprefix(front) if path.startswith(front) else ""
        row = self.server.request["files"].get(name)
        if row is None:
            return self._empty(404, {"X-Error-Code": "EntryNotFound"})
        with self.server.guard:
            self.server.busy += 1
        try:
            self._file(*row)
        except OSError:
            self.close_connection = True
        finally:
            with self.server.guard:
                self.server.busy -= 1
            self.server.asked_s = time.monotonic()

    do_HEAD = do_GET = _answer

    def _file(self, etag: str, size: int, path: str) -> None:
        first, last = _range(self.headers.get("Range", ""), size)
        if first > last and size:
            return self._empty(416, {"Content-Range": f"bytes */{size}"})
        with open(path, "rb", opener=_without_links) as file:
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", self.server.request["commit"])
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last - first + 1))
            if "Range" in self.headers:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            if self.command == "GET" and size:
                self.wfile.flush()
                self.connection.sendfile(file, first, last - first + 1)
        return None

    def _empty(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def _without_links(path: str, flags: int) -> int:
    """Open a path that was free of links when its file was proved, if it still is. Raises OSError."""
    if os.path.realpath(path) != path:
        raise PermissionError(f"{path} was replaced by a symlink")
    return os.open(path, flags | os.O_NOFOLLOW)


def _range(given: str, size: int) -> tuple[int, int]:
    """First and last byte of a Range header, both included; the whole file for one that is none."""
    match = RANGE.fullmatch(given)
    if match is None:
        return 0, size - 1
    first, last = match.groups()
    return int(first), min(int(last), size - 1) if last else size - 1


def main() -> None:
    """Hand out what standard input names, and say the port on standard output."""
    request = json.loads(sys.stdin.buffer.readline())
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"model-peer")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hub = _Hub(request)
    print(hub.server_address[1], flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    threading.Thread(target=hub.watch, daemon=True).start()
    hub.serve_forever(poll_interval=0.2)


# -- the side that wants it --------------------------------------------------------------------------------------------


@contextmanager
def reached(urls: Sequence[str], name: str, token: Secret | None) -> Iterator[str]:
    """The first of a peer's addresses that answers; the peer is notified when the copy is over. Raises Failed when none does."""
    for given in urls:
        matched(PEER_URL, given, f"where {name} hands the model out")
    headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
    url = next((url for url in urls if _asked(url + HERE, headers)), None)
    if url is None:
        fix = "Check the network and firewall between the hosts, or remove `from` to use the hub."
        raise Failed(f"cannot reach {name} from here at {', '.join(urls)}.", fix=fix)
    try:
        yield url
    finally:
        _asked(url + DONE, headers)


def _asked(url: str, headers: Mapping[str, str]) -> bool:
    import requests

    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy can't reach the peer
            with session.get(
                url, headers=dict(headers), timeout=REACH_S, allow_redirects=False, stream=True
            ) as response:
                return response.status_code == 204
    except requests.RequestException:
        return False


if __name__ == "__main__":
    main()

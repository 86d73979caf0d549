"""Serve files to other hosts over HTTP, and reach hosts that serve files.

A process serves the files on this host's addresses, to clients with a token that is made for one copy. Clients without the
token receive no files and cannot block others: an address that has not sent the token may open a few connections, each for a
few seconds. The process outlives the task that started it. It exits when all clients (the readers) are done, or after
IDLE_TIMEOUT_S without requests; before every reader has connected, after FIRST_REQUEST_TIMEOUT_S, or with the run of a
cluster. A reader whose run copies nothing reports that it is done. The bytes are not encrypted, because only their integrity
matters, and every reader verifies it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sparkwright
from sparkwright.errors import Failed
from sparkwright.host.cluster import wire
from sparkwright.host.machine import Machine
from sparkwright.protocol import cluster
from sparkwright.ready import wait_for_readable
from sparkwright.secret import Secret
from sparkwright.transport import http
from sparkwright.transport.connection import TransportError
from sparkwright.trust.names import PEER_URL, require_match
from sparkwright.trust.secret_names import PEER_TOKEN

#: time limits on a request to HERE_PATH or DONE_PATH; the second for a busy peer, if no address answered within the first
REACH_TIMEOUT_S, BUSY_TIMEOUT_S = 3.0, 15.0
MAX_ANSWER_BYTES = 4096
#: path for testing the connection
HERE_PATH = "/here"
#: path for reporting the end of a copy
DONE_PATH = "/done"

#: the server exits after this time without requests
IDLE_TIMEOUT_S = 120.0
#: the same before every reader has connected: a reader pulls the image before it copies the model
FIRST_REQUEST_TIMEOUT_S = 4 * 3600.0
START_TIMEOUT_S = 20.0
PR_SET_NAME = 15
#: maximum number of connections; a copy uses about 30
MAX_CONNECTIONS = 256
#: maximum number of connections that have not sent the token: from one address, and in total
MAX_UNAUTHORIZED_PER_ADDRESS, MAX_UNAUTHORIZED = 8, 64
#: time within which a connection must have sent the token
REQUEST_HEAD_TIMEOUT_S = 10.0


def find_token(secrets: Mapping[str, Secret], purpose: str) -> Secret | None:
    """Return the token for a copy: the one sent with the run, or else one derived from the cluster's token; None without either.

    The cluster's token itself is never sent over HTTP, so an eavesdropper can read only the copied files.
    """
    if PEER_TOKEN in secrets or cluster.TOKEN_SECRET not in secrets:
        return secrets.get(PEER_TOKEN)
    return wire.derive_token(secrets[cluster.TOKEN_SECRET], purpose)


def auth_headers(token: Secret | None) -> dict[str, str]:
    """Return the headers that authorize a request; empty without a token."""
    return {"Authorization": f"Bearer {token.reveal()}"} if token else {}


@contextmanager
def reach_all(urls: Sequence[str], name: str, token: Secret | None, alternative: str) -> Iterator[list[str]]:
    """Yield the addresses at which a peer answers, and notify each at the end of the copy. Raises Failed if none answers.

    Args:
        alternative: what the user can do instead, for the message.
    """
    _check_urls(urls, name)
    reachable = list(_reachable_urls(urls, token))
    if not reachable:
        raise _unreachable_error(urls, name, alternative)
    try:
        yield reachable
    finally:
        for url in reachable:
            ping(url + DONE_PATH, auth_headers(token))


@contextmanager
def reach_first(urls: Sequence[str], name: str, token: Secret | None, alternative: str) -> Iterator[str]:
    """Yield the first address at which a peer answers, and notify it at the end of the copy. Raises Failed if none answers.

    Args:
        alternative: what the user can do instead, for the message.
    """
    _check_urls(urls, name)
    url = next(_reachable_urls(urls, token), None)
    if url is None:
        raise _unreachable_error(urls, name, alternative)
    try:
        yield url
    finally:
        ping(url + DONE_PATH, auth_headers(token))


def report_done(urls: Sequence[str], token: Secret | None) -> None:
    """Tell a peer that this reader is done, at the first of its addresses that answers."""
    _check_urls(urls, "the peer")
    for url in urls:
        if ping(url + DONE_PATH, auth_headers(token)):
            return


def _reachable_urls(urls: Sequence[str], token: Secret | None) -> Iterator[str]:
    """Yield the addresses at which a peer answers in time; if none does, those at which it answers within the longer limit."""
    is_reachable = False
    for timeout_s in (REACH_TIMEOUT_S, BUSY_TIMEOUT_S):
        for url in urls:
            if ping(url + HERE_PATH, auth_headers(token), timeout_s):
                is_reachable = True
                yield url
        if is_reachable:
            return


def _check_urls(urls: Sequence[str], name: str) -> None:
    for url in urls:
        require_match(PEER_URL, url, f"the address of {name}")


def _unreachable_error(urls: Sequence[str], name: str, alternative: str) -> Failed:
    fix = f"Check the network and firewall between the hosts, or {alternative}."
    return Failed(f"cannot reach {name} from here at {', '.join(urls)}.", fix=fix)


def ping(url: str, headers: Mapping[str, str], timeout_s: float = REACH_TIMEOUT_S) -> bool:
    """Return True if the response has status 204, which a peer sends for HERE_PATH and DONE_PATH."""
    try:
        response = http.request("GET", url, headers=headers, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES)
    except TransportError:
        return False
    return response.status == 204


def start_server(machine: Machine, module: str, content_noun: str, request: Mapping[str, Any], token: Secret) -> int:
    """Start a process that runs `module` with this request. Returns the port it listens on.

    Args:
        content_noun: description of the served files, for the error message, such as "the image".
    """
    import_root = str(Path(sparkwright.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **machine.env, "PYTHONPATH": import_root},
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    full_request = {**request, "token": token.reveal(), "runner_pid": os.getpid()}
    process.stdin.write(json.dumps(full_request).encode() + b"\n")
    process.stdin.close()
    first_line = process.stdout.readline() if wait_for_readable([process.stdout], START_TIMEOUT_S) else b""
    process.stdout.close()
    if not first_line.strip().isdigit():
        process.kill()
        process.wait()
        raise Failed(f"cannot serve {content_noun}: the process exited immediately or did not start.")
    return int(first_line)


def list_addresses() -> list[str]:
    """Return this host's IPv4 addresses, those of the fastest links first and those of container bridges last."""
    import psutil

    speeds = {name: (stats.speed if stats.isup else -1) for name, stats in psutil.net_if_stats().items()}
    ranked_addresses = []
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET and not ipaddress.ip_address(address.address).is_loopback:
                is_bridge = name.startswith(("docker", "br-", "veth"))
                ranked_addresses.append((is_bridge, -speeds.get(name, 0), address.address))
    return [address for _, _, address in sorted(ranked_addresses)]


def find_sibling_addresses(address: str, interfaces: Sequence[str]) -> dict[str, str]:
    """Return the addresses of the other half of a fabric port, by interface.

    Args:
        address: an address of this host.
        interfaces: the port's interfaces, beginning with that of `address`.
    """
    import psutil

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    all_addresses = psutil.net_if_addrs()
    siblings = {}
    for name in interfaces[1:]:
        addresses = [entry.address for entry in all_addresses.get(name, ()) if entry.family == family]
        if addresses and address not in addresses and "%" not in addresses[0]:
            siblings[name] = addresses[0]
    return siblings


def serve_on_each(
    bind_address: str, interfaces: Sequence[str], start_process: Callable[[str], int], note: Callable[[str], None]
) -> list[str]:
    """Serve on an address and on those of the port's other half, with one process per address. Returns the URLs in this order.

    A failure on one of the other addresses is only noted.

    Args:
        interfaces: the port's interfaces, beginning with that of `bind_address`.
        start_process: starts the process for an address, and returns its port.
    """
    urls = [f"http://{bind_address}:{start_process(bind_address)}"]
    for name, address in find_sibling_addresses(bind_address, interfaces).items():
        try:
            urls.append(f"http://{address}:{start_process(address)}")
        except Failed as error:
            note(f"{name} ({address}): {error.message} Serving on {bind_address} without it.")
    return urls


def format_urls(urls: Sequence[str]) -> str:
    """Return HOST:PORT of each URL, for a message."""
    return ", ".join(url.removeprefix("http://") for url in urls)


class Admission:
    """Limits on open connections, in total and for those that have not sent the token yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[socket.socket, str] = {}  # clients' addresses by open connection
        self._accepted_s: dict[socket.socket, float] = {}  # accept times of the connections without the token
        self._authorized: set[str] = set()  # addresses that have sent the token

    def admit(self, connection: socket.socket, address: str) -> bool:
        """Register a new connection. Returns False if there are too many."""
        with self._lock:
            pending_addresses = [self._addresses[pending] for pending in self._accepted_s]
            unauthorized_addresses = [
                pending_address for pending_address in pending_addresses if pending_address not in self._authorized
            ]
            is_crowded = (
                len(unauthorized_addresses) >= MAX_UNAUTHORIZED
                or unauthorized_addresses.count(address) >= MAX_UNAUTHORIZED_PER_ADDRESS
            )
            if len(self._addresses) >= MAX_CONNECTIONS or (address not in self._authorized and is_crowded):
                return False
            self._addresses[connection], self._accepted_s[connection] = address, time.monotonic()
            return True

    def authorize(self, connection: socket.socket) -> None:
        """Record that a connection has sent the token."""
        with self._lock:
            self._accepted_s.pop(connection, None)
            self._authorized.add(self._addresses[connection])

    def release(self, connection: socket.socket) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._addresses.pop(connection, None)
            self._accepted_s.pop(connection, None)

    def expire(self) -> None:
        """Shut down the connections that have not sent the token within REQUEST_HEAD_TIMEOUT_S."""
        with self._lock:
            for connection, accepted_s in self._accepted_s.items():
                if time.monotonic() - accepted_s > REQUEST_HEAD_TIMEOUT_S:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)


class PeerServer(ThreadingHTTPServer):
    """An HTTP server that limits connections.

    Args:
        request: `token`, `readers`, `bind` (the address to listen on; empty for all), `runner_pid` (the process that started
            this one), and the fields that the handler needs.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, request: Mapping[str, Any], handler: Callable[..., PeerHandler]) -> None:
        self.request = request
        #: number of readers that are not done yet
        self.remaining_readers = int(request["readers"])
        self.last_request_s = time.monotonic()
        self.active_requests = 0
        #: number of readers that have not connected yet
        self.awaited_readers = self.remaining_readers
        self.lock = threading.Lock()
        self.admission = Admission()
        super().__init__((request["bind"], 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if there are too many."""
        if self.admission.admit(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.admission.release(request)

    def watch(self) -> None:
        """Stop the server when it is no longer needed."""
        while self.is_needed():
            self.admission.expire()
            time.sleep(0.2)
        self.shutdown()

    def is_needed(self) -> bool:
        """Return False if all readers are done, or if there has been no request for too long."""
        # members of a cluster copy during its run; for `model_from`, which binds to no address, the runner exits at once
        has_run_ended = bool(self.request["bind"]) and os.getppid() != self.request["runner_pid"]
        awaits_readers = self.awaited_readers > 0 and not has_run_ended
        timeout_s = FIRST_REQUEST_TIMEOUT_S if awaits_readers else IDLE_TIMEOUT_S
        is_idle = not self.active_requests and time.monotonic() - self.last_request_s >= timeout_s
        return self.remaining_readers > 0 and not is_idle


class PeerHandler(BaseHTTPRequestHandler, ABC):
    """Handler of a connection. Subclasses answer the requests for files."""

    server: PeerServer
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    @abstractmethod
    def handle_path(self, path: str) -> None:
        """Answer an authorized request."""

    def _handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        authorization = self.headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.server.request['token']}".encode()):
            self.close_connection = True
            return self.send_empty(401)
        self.server.admission.authorize(self.connection)
        self.server.last_request_s = time.monotonic()
        if path == HERE_PATH:
            with self.server.lock:
                self.server.awaited_readers -= 1
            return self.send_empty(204)
        if path == DONE_PATH:
            with self.server.lock:
                self.server.remaining_readers -= 1
            return self.send_empty(204)
        with self.server.lock:
            self.server.active_requests += 1
        try:
            self.handle_path(path)
        except OSError:
            self.close_connection = True
        finally:
            with self.server.lock:
                self.server.active_requests -= 1
            self.server.last_request_s = time.monotonic()
        return None

    do_HEAD = do_GET = _handle_request

    def send_empty(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        """Send a response without a body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def serve(handler: Callable[..., PeerHandler], process_name: str) -> None:
    """Read a request from standard input, run a server for it, and print the server's port to standard output."""
    request = json.loads(sys.stdin.buffer.readline())
    ctypes.CDLL(None).prctl(PR_SET_NAME, process_name.encode())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    server = PeerServer(request, handler)
    print(server.server_address[1], flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    threading.Thread(target=server.watch, daemon=True).start()
    server.serve_forever(poll_interval=0.2)

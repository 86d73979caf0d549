"""Access to a running gateway through its sockets: HAProxy's commands and statistics, and requests like a client's."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.gateway import certificate, clients, statistics, usage
from sparkwright.gateway.listeners import ADMIN_SOCKET, CERTIFICATE_FILE, PROOF_SOCKET
from sparkwright.host.gateway import gateway_folders
from sparkwright.host.gateway.gateway_folders import VerifiedGateway
from sparkwright.host.state import StateFolder
from sparkwright.transport import http
from sparkwright.transport.connection import Tls, TransportError, exchange
from sparkwright.trust.bounds import parse_json
from sparkwright.visible import join_first

#: time limit for a command, and maximum size of its output, which is smaller even for hundreds of servers
COMMAND_TIMEOUT_S, MAX_OUTPUT_BYTES = 5.0, 4 * 2**20
#: maximum size of the response to a request like a client's
MAX_RESPONSE_BYTES = 2**20
FD_FOLDER = Path("/proc/self/fd")
#: HAProxy reports its uptime in whole seconds, so a process may seem to have started later than it was verified
CLOCK_TOLERANCE_S = 2.0


def send_command(sockets: Path, command: str, socket_name: str = ADMIN_SOCKET) -> str:
    """Send a command to HAProxy and return its output; empty if it fails, takes too long or exceeds MAX_OUTPUT_BYTES.

    Args:
        sockets: the folder of HAProxy's sockets.
    """
    with contextlib.suppress(OSError, TransportError), socket_path(sockets, socket_name) as path:
        output = exchange(path, f"{command}\n".encode(), timeout_s=COMMAND_TIMEOUT_S, max_bytes=MAX_OUTPUT_BYTES)
        return output.decode(errors="replace")
    return ""


@contextlib.contextmanager
def socket_path(sockets: Path, name: str) -> Iterator[str]:
    """Yield a path to a socket in this folder that is within the limit of 107 bytes.

    Raises OSError if it is missing or is not a socket: a link could lead to another program's socket.
    """
    if not FD_FOLDER.is_dir():  # not Linux: the sandbox, whose folder only this user can write to
        with tempfile.TemporaryDirectory(prefix="sw") as short_folder:
            Path(short_folder, "s").symlink_to(sockets.absolute())
            yield f"{short_folder}/s/{name}"
        return
    folder_fd = os.open(sockets, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        socket_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    finally:
        os.close(folder_fd)
    try:
        if not stat.S_ISSOCK(os.fstat(socket_fd).st_mode):
            raise FileNotFoundError(name)
        yield f"{FD_FOLDER}/{socket_fd}"
    finally:
        os.close(socket_fd)


def running_digest(sockets: Path) -> str:
    """Return the digest of the files that the running HAProxy has loaded; empty if it is not running."""
    return _digest_of(_read_info(sockets))


def _read_info(sockets: Path) -> dict[str, str]:
    """Return the fields of HAProxy's `show info`, by lowercase name; empty if it is not running."""
    rows = (line.partition(": ") for line in send_command(sockets, "show info").splitlines())
    return {name.lower(): value.strip() for name, _, value in rows}


def _digest_of(info: Mapping[str, str]) -> str:
    return info.get("description", "").rpartition(" ")[2]


def _restart_age_s(info: Mapping[str, str], verified: VerifiedGateway) -> float | None:
    """Return how many seconds ago HAProxy restarted by itself; None if it did not, or if that is unknown."""
    uptime, since = info.get("uptime_sec", ""), verified.restored_at or verified.since
    if not uptime.isdecimal() or not since:
        return None
    return float(uptime) if time.time() - float(uptime) > since + CLOCK_TOLERANCE_S else None


def read_statistics(sockets: Path) -> list[dict[str, str]]:
    """Return HAProxy's statistics, a row per frontend, backend and server; empty if unavailable or malformed."""
    return statistics.parse_stat(send_command(sockets, "show stat"))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint at which a gateway on this host accepts requests."""

    port: int
    tls: bool = False  #: True for HTTPS; the certificate is not verified
    sockets: Path | None = None  #: the folder of the gateway's sockets


@dataclass(frozen=True, slots=True)
class Answer:
    """A gateway's response."""

    #: HTTP status; 0 if there was no response, for the reason in `error`
    status: int
    #: the JSON value in its body; None if there is none
    data: Any = None
    error: str = ""

    @property
    def message(self) -> str:
        """The error message; the status if there is none."""
        error = self.data.get("error") if isinstance(self.data, dict) else None
        text = error.get("message") if isinstance(error, dict) else error
        return self.error or (text if isinstance(text, str) else "") or f"status {self.status}"

    @property
    def code(self) -> str:
        """The error code in the response; empty if there is none."""
        error = self.data.get("error") if isinstance(self.data, dict) else None
        return str(error.get("code") or "") if isinstance(error, dict) else ""


def send_request(endpoint: Endpoint, path: str, body: Any = None, *, key: str = "", timeout_s: float = 60) -> Answer:
    """Send a request with this body as JSON, or a GET request if there is none. If it fails, the Answer contains `error`."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with _open_route(endpoint) as route:
            response = http.request(
                "POST" if body else "GET",
                f"{'https' if endpoint.tls else 'http'}://127.0.0.1:{endpoint.port}{path}",
                body=json.dumps(body).encode() if body else None,
                headers=headers,
                timeout_s=timeout_s,
                max_bytes=MAX_RESPONSE_BYTES,
                route=route,
            )
    except TransportError as error:
        return Answer(0, error=str(error))
    try:
        return Answer(response.status, parse_json(response.body))
    except ValueError:
        return Answer(response.status)


@contextlib.contextmanager
def _open_route(endpoint: Endpoint) -> Iterator[http.Route]:
    """Yield the route through PROOF_SOCKET, which clients cannot saturate, or through the port if there is no such socket."""
    with contextlib.ExitStack() as stack:
        unix = ""
        if endpoint.sockets is not None:
            with contextlib.suppress(OSError):
                unix = stack.enter_context(socket_path(endpoint.sockets, PROOF_SOCKET))
        yield http.Route(unix=unix, tls=Tls(verify=False))


def inspect(state: StateFolder) -> dict[str, Any]:
    """Return the state of the gateway on this host; empty if none has been verified and none is running.

    Returns:
        A dict of running, verified (HAProxy uses the last verified files), restarted_s (how many seconds ago it restarted after
        it was verified or restored, or None), models (see gateway/statistics.py), changed (names of files that differ from the
        verified ones), certificate_error (such as `expired on 2026-11-29`, or empty), and clients (usage of clients with keys,
        see gateway/clients.py).
    """
    gateway = gateway_folders.state_in(state)
    sockets, verified = gateway_folders.current_folders(gateway).sockets, gateway_folders.load_last_in(gateway)
    rows = read_statistics(sockets)
    if not rows and not verified:
        return {}
    info = _read_info(sockets) if rows else {}
    status = {
        "running": bool(rows),
        "verified": bool(rows and verified) and _digest_of(info) == verified.digest,
        "restarted_s": _restart_age_s(info, verified),
    }
    proofs = verified.proof.get("models", {})
    models = [
        {**model, "on_demand": bool(proofs.get(model["model"], {}).get("on_demand"))}
        for model in statistics.model_statistics(rows)
    ]
    files = gateway_folders.read_files(
        gateway_folders.current_folders(gateway).files, (clients.KEYS_FILE, clients.TOKENS_FILE, CERTIFICATE_FILE)
    )
    report = {
        **status,
        "changed": _find_changed_files(gateway, verified),
        "certificate_error": certificate.describe_dates_problem(files.get(CERTIFICATE_FILE, "")),
        "models": models,
    }
    client_names = clients.parse_client_names(files.get(clients.KEYS_FILE, ""))
    if not client_names:
        return report | {"clients": []}
    usage_file = usage.FILE_PREFIX + time.strftime("%Y-%m-%d", time.gmtime())
    usage_today = gateway_folders.read_files(sockets, (usage_file,)).get(usage_file, "")
    table, limits = send_command(sockets, f"show table {clients.TABLE_BACKEND}"), files.get(clients.TOKENS_FILE, "")
    return report | {"clients": clients.client_usage(table, usage_today, limits, client_names)}


def describe_problem(report: dict[str, Any]) -> str:
    """Describe the problem of a gateway that `inspect` reported; empty if there is none.

    A server that is down is not a problem of the gateway.
    """
    if not report["running"]:
        return "the gateway is down"
    if report["certificate_error"]:
        return f"the gateway's certificate {report['certificate_error']}: first replace the file in `tls.certificate`"
    if report["changed"]:
        return f"files of the gateway differ from the verified ones: {join_first(report['changed'], 3)}"
    return "" if report["verified"] else "the gateway runs with a configuration that has not been verified"


def _find_changed_files(gateway: StateFolder, verified: VerifiedGateway) -> list[str]:
    if not verified:
        return []
    expected = gateway_folders.read_files(gateway.path / gateway_folders.VERIFIED_FOLDER / verified.digest)
    current = gateway_folders.read_files(gateway_folders.current_folders(gateway).files)
    return sorted(
        name for name in expected.keys() | current.keys() if expected and expected.get(name) != current.get(name)
    )

"""Requests of a host to a gateway in front of it: the state of its own servers there, draining and returning them.

Only GatewayError is raised: a gateway that does not answer, or answers nonsense, must not keep a server from being replaced.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.gateway import operations, statistics, wake
from sparkwright.host.state import StateFolder
from sparkwright.transport import http
from sparkwright.transport.connection import ConnectFailed, Interrupted, Tls, TransportError, Untrusted
from sparkwright.trust import bounds

#: limit of one request in total
ANSWER_S = 5.0
#: limits of an answer, and of servers in it: a host has a few
MAX_ANSWER_BYTES, MAX_SERVERS = 256 * 1024, 256
#: a request longer ago than this does not count; a gateway without any says decades
MAX_REQUEST_AGE_S = 86400

INVALID_ANSWER = "answers what no gateway does"
#: a model's name in HAProxy: it is put into a URL, and shown
BACKEND = re.compile(r"[A-Za-z0-9._:-]{1,400}")


class GatewayError(Exception):
    """A gateway did not do what was requested; the text is a sentence's end: "does not answer"."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway in front of this host."""

    name: str  #: its group's
    address: str
    port: int  #: its control port
    tls: bool
    server: str  #: its name for this host's server
    certificate: str = ""  #: the SHA-256 of its expected certificate; empty if unknown

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gateway:
        """Create it from a plan or a record. Raises KeyError, TypeError or ValueError."""
        fields = (str(data["name"]), str(data["address"]), int(data["port"]), bool(data["tls"]), str(data["server"]))
        return cls(*fields, str(data.get("certificate") or ""))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; `from_json` is the inverse."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RoutedServer:
    """A server of this host as a gateway sees it."""

    backend: str
    name: str
    state: str  #: one of statistics.STATES
    running: int  #: running requests there
    requests: int = 0  #: all its requests since the gateway last read its files


def list_servers(gateway: Gateway, key: str) -> list[RoutedServer]:
    """Return this host's server, once per model that the gateway routes to it. Raises GatewayError."""
    own_servers = [
        server
        for server in _request_servers(gateway, key, "GET", operations.URL_PREFIX)
        if server.name == gateway.server
    ]
    if not own_servers:
        raise GatewayError(f"routes nothing to {gateway.server}")
    return own_servers


def send_action(gateway: Gateway, key: str, action: str, server: RoutedServer) -> None:
    """Have a gateway drain or return a server. Raises GatewayError."""
    _request_servers(gateway, key, "PUT", operations.operation_url(action, server.backend, server.name))


def report_asleep(gateway: Gateway, key: str, server: RoutedServer, wake_s: int) -> float | None:
    """Report a sleeping server to a gateway.

    Args:
        wake_s: seconds until it can be awake; 0 if unknown.

    Returns:
        Seconds since its model was last asked for; None if it was not.

    Raises:
        GatewayError: also for a gateway whose files do not let requests wake this server.
    """
    path = operations.operation_url(wake.ASLEEP, server.backend, server.name)
    rows = _request_rows(gateway, key, "PUT", path, {wake.SECONDS_HEADER: str(min(max(0, wake_s), wake.MAX_WAKE_S))})
    age_s = bounds.count_or_none(rows[0].get(wake.ASKED_FIELD)) if rows else None
    if age_s is None:
        raise GatewayError("does not wake models on request")
    return None if age_s > MAX_REQUEST_AGE_S else age_s


def _request_servers(gateway: Gateway, key: str, method: str, path: str) -> list[RoutedServer]:
    """Send one request and return the servers in the answer. Raises GatewayError."""
    return [_parse_server(row) for row in _request_rows(gateway, key, method, path)]


def _request_rows(
    gateway: Gateway, key: str, method: str, path: str, extra_headers: Mapping[str, str] | None = None
) -> list[Mapping[str, Any]]:
    """Send one request and return the rows of the answer. Raises GatewayError.

    Nothing is sent to a server with another certificate than the gateway's, nor while the gateway's is unknown; the certificate's
    name is not checked.
    """
    if gateway.tls and not gateway.certificate:
        raise GatewayError(
            "may be anybody: its certificate could not be read on the laptop, and it is not told this host's key"
        )
    where = f"[{gateway.address}]" if ":" in gateway.address else gateway.address
    try:
        answer = http.request(
            method,
            f"{'https' if gateway.tls else 'http'}://{where}:{gateway.port}{path}",
            headers={"Authorization": f"Bearer {key}", **(extra_headers or {})},
            timeout_s=ANSWER_S,
            max_bytes=MAX_ANSWER_BYTES,
            route=http.Route(tls=Tls(sha256=gateway.certificate)),
        )
    except Untrusted:
        raise GatewayError(
            "shows another certificate than the one in its file, and is not told this host's key"
        ) from None
    except (ConnectFailed, Interrupted):
        raise GatewayError("does not answer") from None
    except TransportError as error:
        raise GatewayError(str(error)) from None
    if answer.status != 200:
        raise GatewayError(_describe_status(answer.status))
    return _parse_rows(answer.body)


def _parse_rows(body: bytes) -> list[Mapping[str, Any]]:
    """Return the rows of an answer, a limited number. Raises GatewayError."""
    try:
        data = bounds.parse_json(body, max_bytes=MAX_ANSWER_BYTES, max_depth=4)
    except ValueError:
        raise GatewayError(INVALID_ANSWER) from None
    rows = data.get("servers") if isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) > MAX_SERVERS:
        raise GatewayError(INVALID_ANSWER)
    return [row for row in rows if isinstance(row, dict)]


def _parse_server(row: Mapping[str, Any]) -> RoutedServer:
    backend, name, status = (str(row.get(field) or "") for field in ("backend", "server", "status"))
    if not BACKEND.fullmatch(backend):
        raise GatewayError(INVALID_ANSWER)
    running, requests = (bounds.count_or_none(row.get(field)) or 0 for field in ("running", "requests"))
    return RoutedServer(backend, name, statistics.parse_state(status), running, requests)


def _describe_status(status: int) -> str:
    return "does not know this host's key (`gateway.deploy` tells it)" if status == 401 else f"refused it ({status})"


# gateway-key.json: the key with which this host drains and returns its own servers at gateways, without a laptop.
#
# It is random, created once, and sent to gateways only. `gateway.deploy` fetches its SHA-256, which the gateway
# compares.

KEY_RECORD_NAME = "gateway-key"
KEY_BYTES = 32
KEY = re.compile(r"[0-9a-f]{64}")


def load_key(state: StateFolder) -> str:
    """Return the key; empty if there is none."""
    key = str((state.read(KEY_RECORD_NAME) or {}).get("key", ""))
    return key if KEY.fullmatch(key) else ""


def ensure_key(state: StateFolder) -> str:
    """Return the key; create it if there is none."""
    if not load_key(state):
        state.write(KEY_RECORD_NAME, {"key": secrets.token_hex(KEY_BYTES)})
    return load_key(state)


def hash_key(key: str) -> str:
    """Return the hash that a gateway stores of a key; empty for an empty key."""
    return hashlib.sha256(key.encode()).hexdigest() if key else ""

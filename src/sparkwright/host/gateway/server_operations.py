"""Requests from a host to its gateways: query, drain and return its servers there.

Every failure raises GatewayError, so that an unreachable or hostile gateway cannot prevent the replacement of a server.
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

#: time limit for one request, including connecting and reading
REQUEST_TIMEOUT_S = 5.0
#: maximum size of a response, and number of servers in it
MAX_RESPONSE_BYTES, MAX_SERVERS = 256 * 1024, 256
#: older requests are ignored; a gateway that has had no requests reports an age of decades
MAX_REQUEST_AGE_S = 86400

INVALID_RESPONSE_MESSAGE = "sent an invalid response"
#: a model's name in HAProxy; it becomes part of a URL and of messages
BACKEND_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,400}")

KEY_RECORD_NAME = "gateway-key"
KEY_BYTES = 32
KEY_PATTERN = re.compile(r"[0-9a-f]{64}")


class GatewayError(Exception):
    """A request to a gateway failed. The text is a predicate of the gateway, such as "does not answer"."""


class NoRouteError(GatewayError):
    """The gateway has no server of this name."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway in front of this host."""

    name: str  #: the name of its group
    address: str
    port: int  #: its control port
    tls: bool
    server: str  #: the name of this host's server in its configuration
    certificate: str = ""  #: the SHA-256 of its expected certificate; empty if unknown

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gateway:
        """Return the gateway described in a plan or a record. Raises KeyError, TypeError or ValueError."""
        fields = (str(data["name"]), str(data["address"]), int(data["port"]), bool(data["tls"]), str(data["server"]))
        return cls(*fields, str(data.get("certificate") or ""))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types for `from_json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RoutedServer:
    """A server of this host in a gateway's response."""

    backend: str
    name: str
    state: str  #: one of statistics.STATES
    running: int  #: requests in progress
    requests: int = 0  #: total requests since the gateway last loaded its files


def list_servers(gateway: Gateway, key: str) -> list[RoutedServer]:
    """Return this host's server, once per model that the gateway routes to it. Raises GatewayError; NoRouteError without any."""
    servers = [
        server
        for server in _request_servers(gateway, key, "GET", operations.URL_PREFIX)
        if server.name == gateway.server
    ]
    if not servers:
        raise NoRouteError(f"has no route to {gateway.server}")
    return servers


def send_action(gateway: Gateway, key: str, action: str, server: RoutedServer) -> None:
    """Request an action for one server: operations.DRAIN, READY or MAINTENANCE. Raises GatewayError."""
    _request_servers(gateway, key, "PUT", operations.operation_url(action, server.backend, server.name))


def report_asleep(gateway: Gateway, key: str, server: RoutedServer, wake_delay_s: int) -> float | None:
    """Report to a gateway that a server is asleep.

    Args:
        wake_delay_s: seconds until a request made now would have woken it; 0 if unknown.

    Returns:
        Seconds since the last request for its model; None if there was none in the last MAX_REQUEST_AGE_S.

    Raises:
        GatewayError: The request failed, or the gateway is not configured to wake this server on request.
    """
    path = operations.operation_url(wake.ASLEEP_OPERATION, server.backend, server.name)
    rows = _request_rows(
        gateway, key, "PUT", path, {wake.SECONDS_HEADER: str(min(max(0, wake_delay_s), wake.MAX_WAKE_S))}
    )
    age_s = bounds.count_or_none(rows[0].get(wake.LAST_REQUEST_FIELD)) if rows else None
    if age_s is None:
        raise GatewayError("does not wake models on request")
    return None if age_s > MAX_REQUEST_AGE_S else age_s


def _request_servers(gateway: Gateway, key: str, method: str, path: str) -> list[RoutedServer]:
    return [_parse_server(row) for row in _request_rows(gateway, key, method, path)]


def _request_rows(
    gateway: Gateway, key: str, method: str, path: str, extra_headers: Mapping[str, str] | None = None
) -> list[Mapping[str, Any]]:
    """Send one request and return the response's rows. Raises GatewayError.

    With TLS, the request is sent only to a server with the gateway's certificate, regardless of the name in it.
    """
    if gateway.tls and not gateway.certificate:
        raise GatewayError("can't be identified: its certificate could not be read on the laptop")
    address = f"[{gateway.address}]" if ":" in gateway.address else gateway.address
    try:
        response = http.request(
            method,
            f"{'https' if gateway.tls else 'http'}://{address}:{gateway.port}{path}",
            headers={"Authorization": f"Bearer {key}", **(extra_headers or {})},
            timeout_s=REQUEST_TIMEOUT_S,
            max_bytes=MAX_RESPONSE_BYTES,
            route=http.Route(tls=Tls(sha256=gateway.certificate)),
        )
    except Untrusted:
        raise GatewayError("presented an unexpected certificate, so this host's key was not sent") from None
    except (ConnectFailed, Interrupted):
        raise GatewayError("does not answer") from None
    except TransportError as error:
        raise GatewayError(str(error)) from None
    if response.status == 401:
        raise GatewayError("rejected this host's key (`gateway.deploy` registers it)")
    if response.status != 200:
        raise GatewayError(f"answered with status {response.status}")
    return _parse_rows(response.body)


def _parse_rows(body: bytes) -> list[Mapping[str, Any]]:
    try:
        data = bounds.parse_json(body, max_bytes=MAX_RESPONSE_BYTES, max_depth=4)
    except ValueError:
        raise GatewayError(INVALID_RESPONSE_MESSAGE) from None
    rows = data.get("servers") if isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) > MAX_SERVERS:
        raise GatewayError(INVALID_RESPONSE_MESSAGE)
    return [row for row in rows if isinstance(row, dict)]


def _parse_server(row: Mapping[str, Any]) -> RoutedServer:
    backend, name, status = (str(row.get(field) or "") for field in ("backend", "server", "status"))
    if not BACKEND_PATTERN.fullmatch(backend):
        raise GatewayError(INVALID_RESPONSE_MESSAGE)
    running, requests = (bounds.count_or_none(row.get(field)) or 0 for field in ("running", "requests"))
    return RoutedServer(backend, name, statistics.parse_state(status), running, requests)


# gateway-key.json: the key with which this host authenticates to gateways, to drain and return its own servers.
#
# It is random, created once, and sent only to gateways. `gateway.deploy` copies its SHA-256 to the gateway.


def load_key(state: StateFolder) -> str:
    """Return the key; empty if there is none."""
    key = str((state.read(KEY_RECORD_NAME) or {}).get("key", ""))
    return key if KEY_PATTERN.fullmatch(key) else ""


def ensure_key(state: StateFolder) -> str:
    """Return the key; create it if there is none."""
    if not load_key(state):
        state.write(KEY_RECORD_NAME, {"key": secrets.token_hex(KEY_BYTES)})
    return load_key(state)


def hash_key(key: str) -> str:
    """Return the SHA-256 that a gateway stores; empty for an empty key."""
    return hashlib.sha256(key.encode()).hexdigest() if key else ""

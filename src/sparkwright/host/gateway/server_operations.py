"""Requests of a host to a gateway in front of it: the state of its own servers there, draining and returning them.

Nothing but Unheard is raised: a gateway that does not answer, or answers nonsense, must not keep a server from being replaced.
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
LARGEST_BYTES, MOST_SERVERS = 256 * 1024, 256
#: a request longer ago than this does not count; a gateway without any says decades
MOST_AGE_S = 86400

NONSENSE = "answers what no gateway does"
#: a model's name in HAProxy: it is put into a URL, and shown
BACKEND = re.compile(r"[A-Za-z0-9._:-]{1,400}")


class Unheard(Exception):
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
    def of(cls, data: Mapping[str, Any]) -> Gateway:
        """Create it from a plan or a record. Raises KeyError, TypeError or ValueError."""
        words = (str(data["name"]), str(data["address"]), int(data["port"]), bool(data["tls"]), str(data["server"]))
        return cls(*words, str(data.get("certificate") or ""))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; `of` is the inverse."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Server:
    """A server of this host as a gateway sees it."""

    backend: str
    name: str
    state: str  #: one of statistics.STATES
    running: int  #: running requests there
    requests: int = 0  #: all its requests since the gateway last read its files


def servers(gateway: Gateway, key: str) -> list[Server]:
    """Return this host's server, once per model that the gateway routes to it. Raises Unheard."""
    found = [server for server in _ask(gateway, key, "GET", operations.PATH) if server.name == gateway.server]
    if not found:
        raise Unheard(f"routes nothing to {gateway.server}")
    return found


def ask(gateway: Gateway, key: str, action: str, server: Server) -> None:
    """Have a gateway drain or return a server. Raises Unheard."""
    _ask(gateway, key, "PUT", operations.url(action, server.backend, server.name))


def report_asleep(gateway: Gateway, key: str, server: Server, needs_s: int) -> float | None:
    """Report a sleeping server to a gateway.

    Args:
        needs_s: seconds until it can be awake; 0 if unknown.

    Returns:
        Seconds since its model was last asked for; None if it was not.

    Raises:
        Unheard: also for a gateway whose files do not let requests wake this server.
    """
    path = operations.url(wake.ASLEEP, server.backend, server.name)
    rows = _rows(gateway, key, "PUT", path, {wake.SECONDS: str(min(max(0, needs_s), wake.MOST_S))})
    age_s = bounds.count_of(rows[0].get(wake.ASKED)) if rows else None
    if age_s is None:
        raise Unheard("does not wake models on request")
    return None if age_s > MOST_AGE_S else age_s


def _ask(gateway: Gateway, key: str, method: str, path: str) -> list[Server]:
    """Send one request and return the servers in the answer. Raises Unheard."""
    return [_server(row) for row in _rows(gateway, key, method, path)]


def _rows(
    gateway: Gateway, key: str, method: str, path: str, more: Mapping[str, str] | None = None
) -> list[Mapping[str, Any]]:
    """Send one request and return the rows of the answer. Raises Unheard.

    Nothing is sent to a server with another certificate than the gateway's, nor while the gateway's is unknown; the certificate's
    name is not checked.
    """
    if gateway.tls and not gateway.certificate:
        raise Unheard(
            "may be anybody: its certificate could not be read on the laptop, and it is not told this host's key"
        )
    where = f"[{gateway.address}]" if ":" in gateway.address else gateway.address
    try:
        answer = http.request(
            method,
            f"{'https' if gateway.tls else 'http'}://{where}:{gateway.port}{path}",
            headers={"Authorization": f"Bearer {key}", **(more or {})},
            timeout_s=ANSWER_S,
            most_bytes=LARGEST_BYTES,
            route=http.Route(tls=Tls(sha256=gateway.certificate)),
        )
    except Untrusted:
        raise Unheard("shows another certificate than the one in its file, and is not told this host's key") from None
    except (ConnectFailed, Interrupted):
        raise Unheard("does not answer") from None
    except TransportError as error:
        raise Unheard(str(error)) from None
    if answer.status != 200:
        raise Unheard(_refused(answer.status))
    return _listed(answer.body)


def _listed(body: bytes) -> list[Mapping[str, Any]]:
    """Return the rows of an answer, a limited number. Raises Unheard."""
    try:
        data = bounds.json_of(body, most_bytes=LARGEST_BYTES, depth=4)
    except ValueError:
        raise Unheard(NONSENSE) from None
    rows = data.get("servers") if isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) > MOST_SERVERS:
        raise Unheard(NONSENSE)
    return [row for row in rows if isinstance(row, dict)]


def _server(row: Mapping[str, Any]) -> Server:
    backend, name, status = (str(row.get(field) or "") for field in ("backend", "server", "status"))
    if not BACKEND.fullmatch(backend):
        raise Unheard(NONSENSE)
    running, requests = (bounds.count_of(row.get(field)) or 0 for field in ("running", "requests"))
    return Server(backend, name, statistics.state(status), running, requests)


def _refused(status: int) -> str:
    return "does not know this host's key (`gateway.deploy` tells it)" if status == 401 else f"refused it ({status})"


# gateway-key.json: the key with which this host drains and returns its own servers at gateways, without a laptop.
#
# It is random, created once, and sent to gateways only. `gateway.deploy` fetches its SHA-256, which the gateway
# compares.

NAME = "gateway-key"
KEY_BYTES = 32
KEY = re.compile(r"[0-9a-f]{64}")


def kept(state: StateFolder) -> str:
    """Return the key; empty if there is none."""
    found = str((state.read(NAME) or {}).get("key", ""))
    return found if KEY.fullmatch(found) else ""


def made(state: StateFolder) -> str:
    """Return the key; create it if there is none."""
    if not kept(state):
        state.write(NAME, {"key": secrets.token_hex(KEY_BYTES)})
    return kept(state)


def hashed(key: str) -> str:
    """Return the hash that a gateway stores of a key; empty for an empty key."""
    return hashlib.sha256(key.encode()).hexdigest() if key else ""

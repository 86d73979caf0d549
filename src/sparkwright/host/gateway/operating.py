"""A gateway as a host with servers behind it asks it: what it says of them, and draining and returning them. Nothing raises
but Unheard: a gateway that does not answer must not keep a server from being replaced.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.gateway import operations, statistics
from sparkwright.transport import http
from sparkwright.transport.connection import ConnectFailed, Tls, TransportError, Untrusted
from sparkwright.transport.http import Response

#: of one request, all of it
ANSWER_S = 5.0
LARGEST_BYTES = 4 * 2**20


class Unheard(Exception):
    """A gateway did not do what it was asked; its text is a sentence's end: "does not answer"."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway in front of this host. name: its group's. server: what it calls this host's server. certificate: the SHA-256 of
    the one that it has to show; empty where that is not known.
    """

    name: str
    address: str
    port: int
    tls: bool
    server: str
    certificate: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Gateway:
        """From a plan, or a record. Raises KeyError, TypeError or ValueError."""
        words = (str(data["name"]), str(data["address"]), int(data["port"]), bool(data["tls"]), str(data["server"]))
        return cls(*words, str(data.get("certificate") or ""))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `of` is its inverse."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Server:
    """A server of this host as a gateway sees it. state: one of statistics.STATES. running: its requests there."""

    backend: str
    name: str
    state: str
    running: int


def servers(gateway: Gateway, key: str) -> list[Server]:
    """This host's server, once for each model that the gateway routes to it. Raises Unheard."""
    answer = _ask(gateway, key, "GET", operations.TABLE)
    if answer.status != 200:
        raise Unheard(_refused(answer.status))
    rows = list(csv.DictReader(answer.text.removeprefix("# ").splitlines()))
    found = [_server(row) for row in rows if row.get("svname") == gateway.server]
    if not found:
        raise Unheard(f"routes nothing to {gateway.server}")
    return found


def ask(gateway: Gateway, key: str, action: str, server: Server) -> None:
    """Have a gateway drain or return a server. Raises Unheard."""
    body = operations.request(action, server.backend, server.name)
    answer = _ask(gateway, key, "POST", operations.PATH, body)
    if answer.status != 303 or not answer.headers.get("location", "").endswith(operations.DONE):
        raise Unheard(_refused(answer.status))


def _server(row: Mapping[str, str]) -> Server:
    about = statistics.server(row)
    return Server(str(row.get("pxname", "")), str(row.get("svname", "")), about["state"], about["running"])


def _refused(status: int) -> str:
    return "does not know this host's key (`gateway.deploy` tells it)" if status == 401 else f"refused it ({status})"


def _ask(gateway: Gateway, key: str, method: str, path: str, body: str = "") -> Response:
    """Send one request. Nothing is sent to a server that shows another certificate than the gateway's; the certificate's name is
    the clients' business. Raises Unheard.
    """
    where = f"[{gateway.address}]" if ":" in gateway.address else gateway.address
    tls = Tls(sha256=gateway.certificate) if gateway.certificate else Tls(verify=False)
    try:
        return http.request(
            method,
            f"{'https' if gateway.tls else 'http'}://{where}:{gateway.port}{path}",
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/x-www-form-urlencoded"},
            body=body.encode() or None,
            timeout_s=ANSWER_S,
            most_bytes=LARGEST_BYTES,
            route=http.Route(tls=tls),
        )
    except Untrusted:
        raise Unheard("shows another certificate than the one in its file, and is not told this host's key") from None
    except ConnectFailed:
        raise Unheard("does not answer") from None
    except TransportError as error:
        raise Unheard(str(error)) from None

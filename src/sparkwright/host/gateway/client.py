"""Requests through this host's gateway, as clients send them, but over a socket that clients cannot saturate."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.gateway.listeners import PROOF_SOCKET
from sparkwright.host.gateway import admin
from sparkwright.transport import http
from sparkwright.transport.connection import Tls, TransportError
from sparkwright.trust.bounds import json_of

LARGEST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Door:
    """The endpoint at which a gateway of this host takes requests."""

    port: int
    tls: bool = False  #: the certificate's name is not checked: it is meant for clients
    sockets: Path | None = None  #: the folder of its sockets


@dataclass(frozen=True, slots=True)
class Answer:
    """A gateway's answer."""

    #: 0 without an answer; `error` has the reason
    status: int
    data: Any = None
    error: str = ""

    @property
    def message(self) -> str:
        """The error's message."""
        about = self.data.get("error") if isinstance(self.data, dict) else None
        text = about.get("message") if isinstance(about, dict) else about
        return self.error or (text if isinstance(text, str) else "") or f"status {self.status}"

    @property
    def code(self) -> str:
        """The error's code in the gateway's answer."""
        about = self.data.get("error") if isinstance(self.data, dict) else None
        return str(about.get("code") or "") if isinstance(about, dict) else ""


def ask(at: Door, path: str, body: Any = None, *, key: str = "", timeout_s: float = 60) -> Answer:
    """Send a request, with a body as JSON, and return the answer within timeout_s. Never raises."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with _route(at) as route:
            answer = http.request(
                "POST" if body else "GET",
                f"{'https' if at.tls else 'http'}://127.0.0.1:{at.port}{path}",
                body=json.dumps(body).encode() if body else None,
                headers=headers,
                timeout_s=timeout_s,
                most_bytes=LARGEST_BYTES,
                route=route,
            )
    except TransportError as error:
        return Answer(0, error=str(error))
    try:
        return Answer(answer.status, json_of(answer.body))
    except ValueError:
        return Answer(answer.status)


@contextlib.contextmanager
def _route(at: Door) -> Iterator[http.Route]:
    """Yield the route through the socket that clients cannot saturate; through the port if the gateway has no such socket."""
    tls = Tls(verify=False)
    with contextlib.ExitStack() as stack:
        unix = ""
        if at.sockets is not None:
            with contextlib.suppress(OSError):
                unix = stack.enter_context(admin.socket_path(at.sockets, PROOF_SOCKET))
        yield http.Route(unix=unix, tls=tls)

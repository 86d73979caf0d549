"""A request through the gateway of this host, as its clients make one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sparkwright.transport import http
from sparkwright.transport.connection import Tls, TransportError
from sparkwright.trust.bounds import json_of

LARGEST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """status: 0 when nobody answered; then error says why."""

    status: int
    data: Any = None
    error: str = ""

    @property
    def message(self) -> str:
        """What an error says."""
        about = self.data.get("error") if isinstance(self.data, dict) else None
        text = about.get("message") if isinstance(about, dict) else about
        return self.error or (text if isinstance(text, str) else "") or f"status {self.status}"

    @property
    def code(self) -> str:
        """The error's code, as the gateway names it."""
        about = self.data.get("error") if isinstance(self.data, dict) else None
        return str(about.get("code") or "") if isinstance(about, dict) else ""


def ask(port: int, path: str, body: Any = None, *, key: str = "", tls: bool = False, timeout_s: float = 60) -> Answer:
    """Send one request, a body as JSON, and return what came back within timeout_s. Never raises. The certificate's name is the
    clients' business: it is not checked.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        answer = http.request(
            "POST" if body else "GET",
            f"{'https' if tls else 'http'}://127.0.0.1:{port}{path}",
            body=json.dumps(body).encode() if body else None,
            headers=headers,
            timeout_s=timeout_s,
            most_bytes=LARGEST_BYTES,
            route=http.Route(tls=Tls(verify=False)),
        )
    except TransportError as error:
        return Answer(0, error=str(error))
    try:
        return Answer(answer.status, json_of(answer.body))
    except ValueError:
        return Answer(answer.status)

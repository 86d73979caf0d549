"""A request through the gateway of this host, as its clients make one."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any

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
    """One request; a body is sent as JSON. Never raises. The certificate's name is the clients' business: it is not checked."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    link = _connection(port, timeout_s, tls=tls)
    try:
        link.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        got = link.getresponse()
        return Answer(got.status, json_of(got.read(LARGEST_BYTES)))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=f"no answer ({type(error).__name__})")
    except ValueError:
        return Answer(got.status)
    finally:
        link.close()


def _connection(port: int, timeout_s: float, *, tls: bool) -> http.client.HTTPConnection:
    if not tls:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=context)

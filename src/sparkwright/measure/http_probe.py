"""Small HTTP questions to the server, each with a deadline."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.measure import server_error
from sparkwright.measure.connection import connect, ends
from sparkwright.trust import bounds

SHOWN_CHARS = 200
#: why nobody answered, in a word
UNREACHED: dict[type[Exception], str] = {ConnectionRefusedError: "refused", TimeoutError: "timeout"}


@dataclass(frozen=True, slots=True)
class Answer:
    """status: 0 when nobody answered. error: refused, timeout or reset, when there was no answer."""

    status: int
    body: bytes = b""
    error: str = ""

    def json(self) -> Any:
        """The body as JSON; None when it is not."""
        try:
            return bounds.json_of(self.body)
        except ValueError:
            return None

    def message(self) -> str:
        """What an error says, shortly."""
        return (self.failure or self.body.decode(errors="replace") or self.error)[:SHOWN_CHARS]

    @property
    def failure(self) -> str:
        """The server's own error in the body, whatever the status; empty without one."""
        return server_error.message(self.json())


def version(http: Http, base_url: str, *, api_key: str = "", timeout_s: float = 5) -> str | None:
    """The engine's version, as its server tells it; None where it tells none."""
    if not http.version:
        return None
    return http.version_of(ask(base_url, http.version, api_key=api_key, timeout_s=timeout_s).json()) or None


def ask_plainly(
    http: Http, base_url: str, body: Mapping[str, Any], *, api_key: str = "", timeout_s: float = 5
) -> Answer:
    """A chat request; a server that refuses what only some take is asked more plainly. timeout_s: each time. Never raises."""
    while True:
        answer = ask(base_url, openai_api.CHAT, body=body, api_key=api_key, timeout_s=timeout_s)
        plainer = openai_api.plainer(http, body) if answer.status in openai_api.REFUSALS else None
        if plainer is None:
            return answer
        body = plainer


def ask(base_url: str, path: str, *, body: Any = None, api_key: str = "", timeout_s: float = 5) -> Answer:
    """One request on a connection of its own, all of it within timeout_s. Never raises."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        connection = connect(base_url, timeout_s)
    except OSError as error:
        return Answer(0, error=UNREACHED.get(type(error), str(error)))
    try:
        payload = None if body is None else json.dumps(body)
        until_s = time.monotonic() + timeout_s
        ends(connection, time.perf_counter() + timeout_s)
        connection.request("GET" if body is None else "POST", path, payload, headers)
        answer = connection.getresponse()
        return Answer(answer.status, bounds.body_of(answer, until_s=until_s))
    except bounds.TooMuch as error:
        return Answer(0, error=f"its response {error}")
    except TimeoutError:
        return Answer(0, error="timeout")
    except ValueError:  # what http.client says of it repeats the header, with the key
        return Answer(0, error="the key is not valid in an HTTP header")
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=f"reset ({type(error).__name__})")
    finally:
        connection.close()

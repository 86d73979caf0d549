"""Clients that send streams and short requests through a gateway without a break; each is answered, failed or cut."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: how long one answer may take, seconds
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    #: when it was sent
    at_s: float
    #: seconds until the first byte of its answer
    first_s: float
    #: "answered", or the error
    end: str
    stream: bool


@dataclass
class Steady:
    """Clients that send requests without a break."""

    #: of the gateway
    port: int
    #: requested model
    model: str
    #: API key of the clients; empty for none
    key: str = ""
    #: of each stream
    tokens: int = 40
    clients: int = 8
    asked: list[Asked] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def wrong(self) -> list[Asked]:
        """The requests that failed, or whose stream was cut."""
        return [item for item in self.asked if item.end != "answered"]

    def between(self, start_s: float, end_s: float) -> list[Asked]:
        """Return the requests that were sent in this time."""
        return [item for item in self.asked if start_s <= item.at_s < end_s]

    def _client(self, stream: bool) -> None:
        while not self.stop.is_set():
            found = self._ask(stream)
            self.asked.append(found)
            if found.end != "answered":
                time.sleep(0.05)

    def _ask(self, stream: bool) -> Asked:
        body = {"model": self.model, "messages": [{"role": "user", "content": "hello"}], "stream": stream}
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        at_s, first_s = time.monotonic(), 0.0
        try:
            content = json.dumps({**body, "max_tokens": self.tokens if stream else 2})
            link.request("POST", "/v1/chat/completions", content, headers)
            got = link.getresponse()
            start = got.read(1)
            first_s = time.monotonic() - at_s
            return Asked(at_s, first_s, _end(got.status, start + got.read(), stream=stream), stream)
        except (OSError, http.client.HTTPException) as error:
            return Asked(at_s, first_s or time.monotonic() - at_s, f"cut: {type(error).__name__}", stream)
        finally:
            link.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[Steady]:
        """Send requests, half of them for streams, during the `with` block."""
        threads = [threading.Thread(target=self._client, args=(n % 2 == 0,)) for n in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(ANSWER_S)
            hung = sum(
                thread.is_alive() for thread in threads
            )  # no answer, no error: of those a count of failures says nothing
            self.asked.extend([Asked(0.0, ANSWER_S, "hung", True)] * hung)

    def answered(self, more: int) -> None:
        """Wait until so many more requests have ended."""
        until, deadline_s = len(self.asked) + more, time.monotonic() + ANSWER_S
        while len(self.asked) < until:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def _end(status: int, body: bytes, *, stream: bool) -> str:
    if status != 200:
        return f"failed: {status} {_code(body)}"
    return "answered" if not stream or body.rstrip().endswith(b"data: [DONE]") else "cut: no end of the stream"


def _code(body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found: Any = json.loads(body)["error"]
        return str(found.get("code") or found.get("message"))[:80]
    return body[:80].decode(errors="replace")

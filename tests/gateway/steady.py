"""Clients that send streams and short requests through a gateway without a break; each is answered, fails or breaks off."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import wait_until

#: an answer that takes longer has hung and counts as failed
ANSWER_TIMEOUT_S = 120.0
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API of the clients."""

    path: str
    #: field with the question
    question: str
    #: field with the maximum of tokens
    most: str
    #: part of the last event of a stream
    last: bytes

    def body(self, model: str, tokens: int, *, stream: bool) -> dict[str, Any]:
        content: Any = [{"role": "user", "content": "hello"}] if self.question == "messages" else "hello"
        return {"model": model, self.question: content, self.most: tokens, "stream": stream}


DIALECTS = {
    "chat": Dialect(CHAT, "messages", "max_tokens", b"data: [DONE]"),
    "completions": Dialect("/v1/completions", "prompt", "max_tokens", b"data: [DONE]"),
    "responses": Dialect("/v1/responses", "input", "max_output_tokens", b"event: response.completed"),
    "messages": Dialect("/v1/messages", "messages", "max_tokens", b"event: message_stop"),
}


@dataclass(frozen=True, slots=True)
class SentRequest:
    #: when it was sent
    at_s: float
    #: time until the first byte of the answer
    first_s: float
    #: "answered", or the error
    end: str
    stream: bool
    dialect: str


@dataclass
class SteadyClients:
    """Clients that send requests without a break."""

    #: port of the gateway
    port: int
    model: str
    #: API key; empty for none
    key: str = ""
    #: tokens of each stream
    tokens: int = 40
    clients: int = 8
    #: each client cycles through them
    dialects: tuple[str, ...] = ("chat",)
    asked: list[SentRequest] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def wrong(self) -> list[SentRequest]:
        """The requests that failed, or whose stream was cut."""
        return [item for item in self.asked if item.end != "answered"]

    def of(self, dialect: str) -> list[SentRequest]:
        """Return the requests in one dialect."""
        return [item for item in self.asked if item.dialect == dialect]

    def between(self, start_s: float, end_s: float) -> list[SentRequest]:
        """Return the requests that were sent in this time."""
        return [item for item in self.asked if start_s <= item.at_s < end_s]

    def _client(self, stream: bool) -> None:
        for dialect in itertools.cycle(self.dialects):
            if self.stop.is_set():
                return
            sent_request = self._ask(dialect, stream)
            self.asked.append(sent_request)
            if sent_request.end != "answered":
                time.sleep(0.05)

    def _ask(self, name: str, stream: bool) -> SentRequest:
        dialect = DIALECTS[name]
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_TIMEOUT_S)
        at_s, first_s = time.monotonic(), 0.0
        try:
            content = json.dumps(dialect.body(self.model, self.tokens if stream else 2, stream=stream))
            link.request("POST", dialect.path, content, headers)
            response = link.getresponse()
            start = response.read(1)
            first_s = time.monotonic() - at_s
            outcome = _classify_answer(response.status, start + response.read(), dialect.last if stream else b"")
        except (OSError, http.client.HTTPException) as error:
            outcome = "hung" if isinstance(error, TimeoutError) else f"cut: {type(error).__name__}"
        finally:
            link.close()
        took_s = time.monotonic() - at_s
        return SentRequest(at_s, first_s or took_s, "hung" if took_s > ANSWER_TIMEOUT_S else outcome, stream, name)

    @contextlib.contextmanager
    def running(self) -> Iterator[SteadyClients]:
        """Send requests, half of them for streams, during the `with` block."""
        threads = [threading.Thread(target=self._client, args=(n % 2 == 0,)) for n in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(ANSWER_TIMEOUT_S)
            # they have neither an answer nor an error
            hung = sum(thread.is_alive() for thread in threads)
            self.asked.extend([SentRequest(0.0, ANSWER_TIMEOUT_S, "hung", True, self.dialects[0])] * hung)

    def wait_for_answers(self, more: int) -> None:
        """Wait until this number of further requests has ended."""
        count = len(self.asked) + more
        wait_until(lambda: len(self.asked) >= count, f"{more} more answers", ANSWER_TIMEOUT_S)


def _classify_answer(status: int, body: bytes, last: bytes) -> str:
    """Return how an answer ended. last: part of the last event of a complete stream; empty for other answers."""
    if status != 200:
        return f"failed: {status} {_error_code(body)}"
    return "answered" if not last or last in body.rstrip().rpartition(b"\n\n")[2] else "cut: no end of the stream"


def _error_code(body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        code: Any = json.loads(body)["error"]
        return str(code.get("code") or code.get("message"))[:80]
    return body[:80].decode(errors="replace")

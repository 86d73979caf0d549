"""One measured stream: a pre-opened connection, the clock read before anything is parsed.

Tokens come from the cumulative usage of each chunk, else from the final usage, else chunks are counted and the result says
that it is approximate: one chunk can carry many tokens.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sparkwright.engine import endpoints


class StreamError(Exception):
    """The server refused, or the stream broke off. status: the HTTP status, 0 when there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Stream:
    """started_s: when the request went out. points: (seconds since then, cumulative tokens) of each chunk with text."""

    points: list[tuple[float, int]] = field(default_factory=list)
    approximate: bool = False
    prompt_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return self.points[-1][1] if self.points else 0

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, seconds."""
        return self.points[0][0] if self.points else None

    @property
    def tok_per_s(self) -> float | None:
        """Decode rate: tokens after the first chunk over the time they took. None with fewer than two chunks."""
        if len(self.points) < 2 or self.points[-1][0] <= self.points[0][0]:
            return None
        (first_s, first), (last_s, last) = self.points[0], self.points[-1]
        return (last - first) / (last_s - first_s)

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks, seconds."""
        return [b[0] - a[0] for a, b in zip(self.points, self.points[1:], strict=False)]


def connect(base_url: str, timeout_s: float) -> http.client.HTTPConnection:
    """An open connection without Nagle's delay. Raises OSError."""
    where = urlsplit(base_url)
    connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port or 80, timeout=timeout_s)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def run(
    base_url: str,
    body: dict[str, Any],
    *,
    api_key: str = "",
    cap_s: float = 60,
    timeout_s: float = 30,
    on_chunk: Callable[[int], None] = lambda tokens: None,
) -> Stream:
    """Send one streaming request and time its chunks; after cap_s it is ended by closing. Raises StreamError."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        connection = connect(base_url, timeout_s)
        try:
            payload = json.dumps(body)
            started_s = time.perf_counter()
            connection.request("POST", endpoints.CHAT, payload, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise StreamError(_message(answer.read()), answer.status)
            return _read(answer, started_s, cap_s, on_chunk)
        finally:
            connection.close()
    except TimeoutError:
        raise StreamError(f"nothing came for {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise StreamError(f"the stream broke off: {type(error).__name__} {error}".strip()) from None


def _read(answer: http.client.HTTPResponse, started_s: float, cap_s: float, on_chunk: Callable[[int], None]) -> Stream:
    stream, continuous, chunks = Stream(), False, 0
    while True:
        line = answer.readline()
        now_s = time.perf_counter() - started_s
        if not line:
            raise StreamError("the stream ended before it was done")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        chunk = json.loads(data)
        if "error" in chunk:
            raise StreamError(str(chunk["error"].get("message", chunk["error"])))
        usage = chunk.get("usage") or {}
        stream.prompt_tokens = usage.get("prompt_tokens") or stream.prompt_tokens
        if any(endpoints.delta_counts(choice.get("delta") or {}) for choice in chunk.get("choices") or ()):
            chunks += 1
            continuous = continuous or bool(usage.get("completion_tokens"))
            stream.points.append((now_s, usage.get("completion_tokens") or chunks))
            on_chunk(stream.tokens)
        elif usage.get("completion_tokens") and stream.points and not continuous:
            _rescale(stream, usage["completion_tokens"], chunks)
            continuous = True
        if now_s > cap_s:
            break
    stream.approximate = not continuous
    return stream


def _rescale(stream: Stream, total: int, chunks: int) -> None:
    """Only the final count is known: the chunks share it evenly."""
    stream.points = [(at_s, round(n * total / chunks)) for n, (at_s, _) in enumerate(stream.points, 1)]


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace") or "no message"

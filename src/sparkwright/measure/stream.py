"""Measuring a single stream: the connection is opened beforehand, and the clock is read before anything is parsed.

`record` only receives and reads the clock; `read` extracts the tokens afterwards. Tokens come from the cumulative usage in each
chunk, or else from the final usage. If there is neither, chunks are counted and the result is marked as approximate, because a
chunk can carry many tokens. Everything generated counts: content, thinking, and tool calls, but not a chunk with only the role.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sparkwright.engines import openai_api
from sparkwright.measure import http_probe
from sparkwright.measure.connection import connect, ends
from sparkwright.trust import bounds

READ_BYTES = 1 << 16
#: size limit of a chunk; one has 300 bytes, or a few kB with many tokens
EVENT_BYTES = 1 << 20
MOST_BYTES = 256 << 20
#: limit on the pieces of a stream: a minute of ten thousand tokens per second, one in each
MOST_PIECES = 600_000
ERROR_BYTES = 1 << 16
#: keys of a chunk that hold the number of tokens so far, to which an engine may add others
Counted = Sequence[tuple[str, str]]
USAGE: Counted = (("usage", "completion_tokens"),)
#: limit on the tokens in a chunk: with speculation there are up to 16, while larger chunks were held back by the server's parser
#: or a proxy
BURST_TOKENS = 16
#: shares of a stream's tokens in such chunks, or at one moment, from which the times show flushing instead of decoding
BURST_SHARE, MOMENT_SHARE = 0.5, 0.8
#: limit on the tokens of an answer, more than any server generates
MOST_TOKENS = 10**9


class StreamError(Exception):
    """Raised if the server refused or the stream broke off.

    Args:
        message: the error.
        status: the HTTP status; 0 if there was none.
        tokens: number of tokens generated until then.
    """

    def __init__(self, message: str, status: int = 0, tokens: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.tokens = tokens


@dataclass
class Stream:
    """The tokens of one stream and the times at which they arrived."""

    #: chunks with new tokens, as (seconds since the request was sent, cumulative tokens)
    points: list[tuple[float, int]] = field(default_factory=list)
    approximate: bool = False
    prompt_tokens: int = 0
    #: time of time.perf_counter at which the request was sent
    sent_s: float = 0.0
    #: number of tokens that the server reports, including a last token that decodes to nothing
    total: int = 0
    #: True if the client ended the stream
    capped: bool = False
    #: number of thinking tokens before the first other token
    thought: int = 0

    @property
    def tokens(self) -> int:
        return max(self.total, self.points[-1][1] if self.points else 0)

    @property
    def in_bursts(self) -> bool:
        """True if most tokens came in few chunks, so that neither a decode rate nor times between tokens can be measured."""
        counts = [count for _, count in self.points]
        chunks = [(at_s, count - before) for (at_s, count), before in zip(self.points, [0, *counts], strict=False)]
        held_back = sum(tokens for _, tokens in chunks if tokens > BURST_TOKENS)
        moments: dict[float, int] = {}
        for at_s, tokens in chunks:
            moments[at_s] = moments.get(at_s, 0) + tokens
        together = max(moments.values(), default=0)
        all_tokens = counts[-1] if counts else 0
        at_once = together > BURST_TOKENS and together > MOMENT_SHARE * all_tokens
        return at_once or held_back > BURST_SHARE * all_tokens

    @property
    def ttft_s(self) -> float | None:
        """The time to the first token in seconds; None for a stream in bursts."""
        return self.points[0][0] if self.points and not self.in_bursts else None

    @property
    def e2el_s(self) -> float | None:
        """The time from the request to the last token in seconds."""
        return self.points[-1][0] if self.points else None

    @property
    def tok_per_s(self) -> float | None:
        """The decode rate, which is tokens after the first chunk over their time; None for fewer than two chunks or bursts."""
        if len(self.points) < 2 or self.points[-1][0] <= self.points[0][0] or self.in_bursts:
            return None
        (first_s, first), (last_s, last) = self.points[0], self.points[-1]
        return (last - first) / (last_s - first_s)

    @property
    def request_tok_per_s(self) -> float | None:
        """All tokens over the time from the request to the last token, which is known even for a stream in bursts."""
        return self.tokens / self.points[-1][0] if self.points and self.points[-1][0] > 0 else None

    @property
    def tpot_s(self) -> float | None:
        """The time per token after the first chunk in seconds, which is the inverse of the rate."""
        return 1 / self.tok_per_s if self.tok_per_s else None

    @property
    def gaps_s(self) -> list[float]:
        """The times between chunks in seconds; empty for a stream in bursts."""
        if self.in_bursts:
            return []
        return [b[0] - a[0] for a, b in zip(self.points, self.points[1:], strict=False)]


@dataclass
class Recording:
    """The bytes of an answer with their arrival times, in seconds since the request was sent."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    sent_s: float = 0.0
    capped: bool = False
    broken: str = ""


def request_bytes(base_url: str, body: dict[str, Any], api_key: str, path: str = openai_api.CHAT) -> bytes:
    """Return the complete request, which is built before the clock starts and sent in one piece."""
    payload, where = json.dumps(body).encode(), urlsplit(base_url)
    lines = [
        f"POST {where.path.rstrip('/')}{path} HTTP/1.1",  # a server's URL may have a prefix
        f"Host: {where.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *([f"Authorization: Bearer {api_key}"] if api_key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + payload


def run(base_url: str, body: dict[str, Any], *, counted: Counted = USAGE, **how: Any) -> Stream:
    """Send a streaming request and time its chunks. Raises StreamError. Other keyword arguments are those of `record`."""
    return read(record(base_url, body, **how), counted)


def record(
    base_url: str,
    body: dict[str, Any],
    *,
    api_key: str = "",
    cap_s: float = 60,
    timeout_s: float = 30,
    on_chunk: Callable[[int], None] = lambda chunks: None,
    connection: http.client.HTTPConnection | None = None,
    path: str = openai_api.CHAT,
) -> Recording:
    """Send a streaming request and record its chunks without parsing them.

    Raises StreamError if the stream never begins. If it breaks off later, `broken` holds the error.

    Args:
        base_url: URL of the server.
        body: body of the request.
        api_key: key of the server.
        cap_s: seconds after which the connection is closed, which is not an error.
        timeout_s: longest silence.
        on_chunk: called with the number of pieces so far.
        connection: an open connection to use.
        path: path of the API.
    """
    found, data = Recording(), request_bytes(base_url, body, api_key, path)
    try:
        connection = connection or connect(base_url, timeout_s)
    except OSError as error:
        raise StreamError(f"no answer: {_message(error)}") from None
    try:
        answer = http.client.HTTPResponse(connection.sock, method="POST")
        found.sent_s = time.perf_counter()
        connection.sock.sendall(data)
        ends(connection, found.sent_s + min(timeout_s, cap_s))
        answer.begin()
        if answer.status != 200:
            raise StreamError(_refusal(answer.read(ERROR_BYTES)), answer.status)
        ends(connection, found.sent_s + cap_s)
        _receive(answer, found, cap_s, on_chunk)
    except TimeoutError:
        found.capped = time.perf_counter() - found.sent_s >= cap_s
        found.broken = "" if found.capped else f"no data for {timeout_s:g} s"
    except (OSError, http.client.HTTPException) as error:
        found.broken = f"the stream was interrupted: {_message(error)}"
    finally:
        connection.close()
    return found


def _receive(answer: http.client.HTTPResponse, found: Recording, cap_s: float, on_chunk: Callable[[int], None]) -> None:
    """Receive pieces and store them with their times. This is the hot loop."""
    pieces, sent_s, clock, receive = found.pieces, found.sent_s, time.perf_counter, answer.read1
    count, size = 0, 0
    while size <= MOST_BYTES and count < MOST_PIECES:
        piece = receive(READ_BYTES)
        now_s = clock() - sent_s
        if not piece:
            return
        pieces.append((now_s, piece))
        size += len(piece)
        count += 1
        on_chunk(count)
        if now_s > cap_s:
            found.capped = True
            return
    found.broken = f"the stream exceeds {MOST_BYTES >> 20} MiB, or {MOST_PIECES} pieces"


def read(recording: Recording, counted: Counted = USAGE) -> Stream:
    """Return the tokens of a recording. Raises StreamError if it broke off or holds the server's own error.

    Args:
        recording: recording of the stream.
        counted: keys of a chunk that hold the number of tokens so far.
    """
    reader = _Reader(Stream(sent_s=recording.sent_s, capped=recording.capped), counted)
    rest = b""
    for at_s, piece in recording.pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            reader.line(at_s, line)
        if len(rest) > EVENT_BYTES:
            raise StreamError(f"a chunk exceeds {EVENT_BYTES >> 20} MiB", tokens=reader.stream.tokens)
    stream = reader.stream
    if recording.broken:
        raise StreamError(recording.broken, tokens=stream.tokens)
    if not reader.done and not stream.capped:
        raise StreamError("the stream ended early", tokens=stream.tokens)
    return reader.finish()


def chunks(recording: Recording) -> list[dict[str, Any]]:
    """Return the JSON of each chunk in a recording. Raises StreamError as `read` does."""
    read(recording)
    lines = b"".join(piece for _, piece in recording.pieces).split(b"\n")
    data = (line[5:].strip() for line in lines if line.startswith(b"data:"))
    return [bounds.json_of(text) for text in data if text != b"[DONE]"]


def events(recording: Recording, last: Collection[str]) -> list[dict[str, Any]]:
    """Return the JSON of each event of a recording in an API whose events have types.

    Args:
        recording: of the stream.
        last: the types of the event that ends one.

    Raises:
        StreamError: it broke off, or holds the server's own error.
    """
    if recording.broken:
        raise StreamError(recording.broken)
    return events_in(b"".join(piece for _, piece in recording.pieces), last)


def events_in(content: bytes, last: Collection[str]) -> list[dict[str, Any]]:
    """Return the JSON of each event of a stream's content.

    Args:
        content: of the stream.
        last: as for `events`; empty for an API whose streams end with `[DONE]`.

    Raises:
        StreamError: it broke off, or holds the server's own error.
    """
    found: list[dict[str, Any]] = []
    done = False
    for line in content.split(b"\n"):
        data = line[5:].strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            done = done or data == b"[DONE]"
            continue
        event = _object(data)
        if words := http_probe.message(event) or http_probe.message(event.get("response")):
            raise StreamError(f"server error: {words}")
        found.append(event)
    if not found or (found[-1].get("type") not in last if last else not done):
        raise StreamError("the stream ended early")
    return found


class _Reader:
    """Converts lines of server-sent events to points."""

    def __init__(self, stream: Stream, counted: Counted) -> None:
        self.stream = stream
        self._counted = counted
        self.done = False
        self._chunks = 0
        self._continuous = False
        self._speaks = False

    def line(self, at_s: float, line: bytes) -> None:
        if line.startswith(b"error:") and not self.done:
            raise self._failed(_document(line[6:].strip()))
        if not line.startswith(b"data:") or self.done:
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        chunk = _object(data, self.stream.tokens)
        if http_probe.message(chunk):
            raise self._failed(chunk)
        self._chunk(at_s, chunk)

    def _failed(self, error: Any) -> StreamError:
        """Return the server's own error."""
        words = http_probe.message(error) or http_probe.text(error) or "no message"
        return StreamError(f"server error: {words}", tokens=self.stream.tokens)

    def _chunk(self, at_s: float, chunk: dict[str, Any]) -> None:
        stream, usage = self.stream, _mapping(chunk.get("usage"))
        stream.prompt_tokens = bounds.count_of(usage.get("prompt_tokens"), MOST_TOKENS) or stream.prompt_tokens
        so_far = (bounds.count_of(_mapping(chunk.get(part)).get(key), MOST_TOKENS) for part, key in self._counted)
        counted = next(filter(None, so_far), 0)
        choices = chunk.get("choices")
        deltas = [_mapping(_mapping(choice).get("delta")) for choice in (choices if isinstance(choices, list) else ())]
        speaks = any(openai_api.delta_counts(delta) for delta in deltas)
        if deltas and counted and not self._chunks:
            self._continuous = True
            if counted > stream.tokens:
                self._point(at_s, counted, deltas)
            return
        if speaks and not self._continuous:
            self._chunks += 1
            self._point(at_s, self._chunks, deltas)
        stream.total = counted or stream.total

    def _point(self, at_s: float, tokens: int, deltas: list[dict[str, Any]]) -> None:
        self._speaks = self._speaks or any(openai_api.delta_speaks(delta) for delta in deltas)
        if not self._speaks:
            self.stream.thought = tokens
        self.stream.points.append((at_s, tokens))

    def finish(self) -> Stream:
        """Return the stream. If only the final token count is known, it is distributed evenly over the chunks."""
        stream, chunks, total = self.stream, self._chunks, self.stream.total
        if not self._continuous and total and chunks:
            stream.thought = round(stream.thought * total / chunks)
            stream.points = [(at_s, round(n * total / chunks)) for at_s, n in stream.points]
        stream.approximate = not self._continuous and not total
        return stream


def _object(data: bytes, tokens: int = 0) -> dict[str, Any]:
    """Return a chunk's JSON. Raises StreamError with the number of tokens before it."""
    try:
        chunk = bounds.json_of(data)
    except ValueError:
        raise StreamError("a chunk is not JSON", tokens=tokens) from None
    if not isinstance(chunk, dict):
        raise StreamError("a chunk is not a JSON object", tokens=tokens)
    return chunk


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _document(data: bytes) -> Any:
    """Return the data as JSON, or as text if it is not JSON."""
    try:
        return bounds.json_of(data)
    except ValueError:
        return data.decode(errors="replace")


def _message(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


def _refusal(body: bytes) -> str:
    try:
        words = http_probe.message(bounds.json_of(body))
    except ValueError:
        words = ""
    return words or body[:200].decode(errors="replace") or "no message"

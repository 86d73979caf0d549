"""Measure a single stream. The connection is opened beforehand, and arrival times are taken before anything is parsed.

`record` only receives bytes and reads the clock; `parse_recording` extracts the tokens afterwards. Their number comes from the
cumulative usage in each chunk, or else from the final usage. Without either, chunks are counted and the result is marked as
approximate, because a chunk can contain many tokens. Content, thinking and tool calls count; a chunk with only a role does not.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sparkwright.engines import openai_api
from sparkwright.measure import http_probe
from sparkwright.measure.connection import connect, set_read_deadline
from sparkwright.measure.http_probe import Target
from sparkwright.trust import bounds

READ_BYTES = 1 << 16
#: maximum size of a chunk, which usually has 300 bytes, or a few kB with many tokens
MAX_EVENT_BYTES = 1 << 20
MAX_STREAM_BYTES = 256 << 20
#: maximum number of pieces of a stream, enough for a minute with ten thousand tokens per second, each in its own piece
MAX_PIECES = 600_000
MAX_ERROR_BYTES = 1 << 16
#: where a chunk reports the number of tokens so far, as (object, key) pairs; an engine may use others than USAGE_KEYS
CounterKeys = Sequence[tuple[str, str]]
USAGE_KEYS: CounterKeys = (("usage", "completion_tokens"),)
#: maximum number of tokens in an undelayed chunk: speculation yields up to 16, so a parser or a proxy delayed a larger chunk
MAX_CHUNK_TOKENS = 16
#: maximum share of a stream's tokens in delayed chunks; above it, arrival times do not reflect decoding
MAX_BURST_SHARE = 0.5
#: the same for tokens that arrive at the same moment
MAX_MOMENT_SHARE = 0.8
#: largest number of tokens that a server may report
MAX_TOKENS = 10**9


class StreamError(Exception):
    """The server refused a request, or a stream was interrupted.

    Args:
        status: the HTTP status; 0 if there was no response.
        tokens: number of tokens received before the error.
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
    #: True if chunks were counted, because the server reports no usage
    approximate: bool = False
    prompt_tokens: int = 0
    #: time of time.perf_counter at which the request was sent
    sent_s: float = 0.0
    #: number of tokens that the server reports, including a last token without text; 0 if it reports none
    total: int = 0
    #: True if the client ended the stream
    capped: bool = False
    #: number of thinking tokens before the first other token
    thinking_tokens: int = 0

    @property
    def tokens(self) -> int:
        return max(self.total, self.points[-1][1] if self.points else 0)

    @property
    def in_bursts(self) -> bool:
        """True if most tokens came in few chunks, so that neither a decode rate nor times between tokens can be measured."""
        if not self.points:
            return False
        totals = [total for _, total in self.points]
        chunks = [(at_s, total - previous) for (at_s, total), previous in zip(self.points, [0, *totals], strict=False)]
        delayed_tokens = sum(tokens for _, tokens in chunks if tokens > MAX_CHUNK_TOKENS)
        tokens_by_time: Counter[float] = Counter()
        for at_s, tokens in chunks:
            tokens_by_time[at_s] += tokens
        largest_burst = max(tokens_by_time.values())
        arrived_at_once = largest_burst > MAX_CHUNK_TOKENS and largest_burst > MAX_MOMENT_SHARE * totals[-1]
        return arrived_at_once or delayed_tokens > MAX_BURST_SHARE * totals[-1]

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
        """The decode rate: tokens per second after the first chunk. None for a stream in bursts or with a single chunk."""
        if len(self.points) < 2 or self.points[-1][0] <= self.points[0][0] or self.in_bursts:
            return None
        (first_s, first_tokens), (last_s, last_tokens) = self.points[0], self.points[-1]
        return (last_tokens - first_tokens) / (last_s - first_s)

    @property
    def request_tok_per_s(self) -> float | None:
        """Tokens per second from the request to the last token; valid even for a stream in bursts."""
        return self.tokens / self.points[-1][0] if self.points and self.points[-1][0] > 0 else None

    @property
    def tpot_s(self) -> float | None:
        """The time per token after the first chunk in seconds: the inverse of the decode rate."""
        return 1 / self.tok_per_s if self.tok_per_s else None

    @property
    def gaps_s(self) -> list[float]:
        """The times between chunks in seconds; empty for a stream in bursts."""
        if self.in_bursts:
            return []
        return [b[0] - a[0] for a, b in zip(self.points, self.points[1:], strict=False)]


@dataclass
class Recording:
    """The bytes of a response with their arrival times, in seconds since the request was sent."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    #: time of time.perf_counter at which the request was sent
    sent_s: float = 0.0
    #: True if the client ended the stream
    capped: bool = False
    #: the error that interrupted the stream; empty if it was not interrupted
    error: str = ""


def build_request(base_url: str, body: dict[str, Any], api_key: str, path: str = openai_api.CHAT_PATH) -> bytes:
    """Return the bytes of a request, so that it can be sent in one piece."""
    payload, url = json.dumps(body).encode(), urlsplit(base_url)
    lines = [
        f"POST {url.path.rstrip('/')}{path} HTTP/1.1",  # a server's URL may have a prefix
        f"Host: {url.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *([f"Authorization: Bearer {api_key}"] if api_key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + payload


def measure_stream(
    base_url: str, body: dict[str, Any], *, counter_keys: CounterKeys = USAGE_KEYS, **options: Any
) -> Stream:
    """Send a streaming request and time its chunks. Raises StreamError. Other keyword arguments are those of `record`."""
    return parse_recording(record(base_url, body, **options), counter_keys)


def measure_target(target: Target, body: dict[str, Any], **options: Any) -> Stream:
    """Send a streaming request to a target as `measure_stream` does, with the target's timeout unless `options` has another."""
    options = {"timeout_s": target.timeout_s, **options}
    keys = target.http.token_count_keys
    return measure_stream(target.base_url, body, counter_keys=keys, api_key=target.api_key, **options)


def record(
    base_url: str,
    body: dict[str, Any],
    *,
    api_key: str = "",
    cap_s: float = 60,
    timeout_s: float = 30,
    on_chunk: Callable[[int], None] = lambda chunks: None,
    connection: http.client.HTTPConnection | None = None,
    path: str = openai_api.CHAT_PATH,
) -> Recording:
    """Send a streaming request and record its chunks without parsing them.

    Args:
        cap_s: seconds after which the connection is closed, which is not an error.
        timeout_s: maximum time without data from the server.
        on_chunk: called with the number of pieces so far.
        connection: an open connection to use.

    Raises:
        StreamError: the stream did not begin. A later interruption is recorded in `Recording.error`.
    """
    recording, request = Recording(), build_request(base_url, body, api_key, path)
    try:
        connection = connection or connect(base_url, timeout_s)
    except OSError as error:
        raise StreamError(f"no answer: {_format_error(error)}") from None
    try:
        response = http.client.HTTPResponse(connection.sock, method="POST")
        recording.sent_s = time.perf_counter()
        connection.sock.sendall(request)
        set_read_deadline(connection, recording.sent_s + min(timeout_s, cap_s))
        response.begin()
        if response.status != 200:
            raise StreamError(_parse_refusal(response.read(MAX_ERROR_BYTES)), response.status)
        set_read_deadline(connection, recording.sent_s + cap_s)
        _receive(response, recording, cap_s, on_chunk)
    except TimeoutError:
        recording.capped = time.perf_counter() - recording.sent_s >= cap_s
        recording.error = "" if recording.capped else f"no data for {timeout_s:g} s"
    except (OSError, http.client.HTTPException) as error:
        recording.error = f"the stream was interrupted: {_format_error(error)}"
    finally:
        connection.close()
    return recording


def _receive(
    response: http.client.HTTPResponse, recording: Recording, cap_s: float, on_chunk: Callable[[int], None]
) -> None:
    """Receive pieces and store them with their times. The loop does as little as possible, so that it keeps up."""
    pieces, sent_s, clock, receive = recording.pieces, recording.sent_s, time.perf_counter, response.read1
    count, size = 0, 0
    while size <= MAX_STREAM_BYTES and count < MAX_PIECES:
        piece = receive(READ_BYTES)
        now_s = clock() - sent_s
        if not piece:
            return
        pieces.append((now_s, piece))
        size += len(piece)
        count += 1
        on_chunk(count)
        if now_s > cap_s:
            recording.capped = True
            return
    recording.error = f"the stream exceeds {MAX_STREAM_BYTES >> 20} MiB, or {MAX_PIECES} pieces"


def parse_recording(recording: Recording, counter_keys: CounterKeys = USAGE_KEYS) -> Stream:
    """Return the tokens of a recording. Raises StreamError if it is incomplete or contains an error from the server."""
    reader = _Reader(Stream(sent_s=recording.sent_s, capped=recording.capped), counter_keys)
    remainder = b""
    for at_s, piece in recording.pieces:
        *lines, remainder = (remainder + piece).split(b"\n")
        for line in lines:
            reader.read_line(at_s, line)
        if len(remainder) > MAX_EVENT_BYTES:
            raise StreamError(f"a chunk exceeds {MAX_EVENT_BYTES >> 20} MiB", tokens=reader.stream.tokens)
    stream = reader.stream
    if recording.error:
        raise StreamError(recording.error, tokens=stream.tokens)
    if not reader.done and not stream.capped:
        raise StreamError("the stream ended early", tokens=stream.tokens)
    return reader.finish()


def parse_chunks(recording: Recording) -> list[dict[str, Any]]:
    """Return the JSON of each chunk in a recording. Raises StreamError as `parse_recording` does."""
    parse_recording(recording)
    lines = b"".join(piece for _, piece in recording.pieces).split(b"\n")
    data = (line[5:].strip() for line in lines if line.startswith(b"data:"))
    return [bounds.parse_json(text) for text in data if text != b"[DONE]"]


def parse_events(recording: Recording, final_types: Collection[str]) -> list[dict[str, Any]]:
    """Return the JSON of each event of a recording, for an API whose events have types.

    Args:
        final_types: types of the event that ends a stream.

    Raises:
        StreamError: the recording is incomplete or contains an error from the server.
    """
    if recording.error:
        raise StreamError(recording.error)
    return parse_event_stream(b"".join(piece for _, piece in recording.pieces), final_types)


def parse_event_stream(content: bytes, final_types: Collection[str]) -> list[dict[str, Any]]:
    """Return the JSON of each event of a stream. Raises StreamError as `parse_events` does.

    Args:
        content: the stream's bytes.
        final_types: types of the event that ends a stream; empty for an API whose streams end with `[DONE]`.
    """
    events: list[dict[str, Any]] = []
    is_done = False
    for line in content.split(b"\n"):
        data = line[5:].strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            is_done = is_done or data == b"[DONE]"
            continue
        event = _parse_object(data)
        if error := http_probe.extract_error(event) or http_probe.extract_error(event.get("response")):
            raise StreamError(f"server error: {error}")
        events.append(event)
    if not events or (events[-1].get("type") not in final_types if final_types else not is_done):
        raise StreamError("the stream ended early")
    return events


class _Reader:
    """Converts lines of server-sent events to points."""

    def __init__(self, stream: Stream, counter_keys: CounterKeys) -> None:
        self.stream = stream
        self._counter_keys = counter_keys
        self.done = False
        self._chunks = 0
        self._has_cumulative_usage = False
        self._has_visible_output = False

    def read_line(self, at_s: float, line: bytes) -> None:
        if line.startswith(b"error:") and not self.done:
            raise self._build_server_error(_parse_json_or_text(line[6:].strip()))
        if not line.startswith(b"data:") or self.done:
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        chunk = _parse_object(data, self.stream.tokens)
        if http_probe.extract_error(chunk):
            raise self._build_server_error(chunk)
        self._add_chunk(at_s, chunk)

    def _build_server_error(self, error: Any) -> StreamError:
        message = http_probe.extract_error(error) or http_probe.error_text(error) or "no message"
        return StreamError(f"server error: {message}", tokens=self.stream.tokens)

    def _add_chunk(self, at_s: float, chunk: dict[str, Any]) -> None:
        stream, usage = self.stream, _as_mapping(chunk.get("usage"))
        stream.prompt_tokens = bounds.count_or_none(usage.get("prompt_tokens"), MAX_TOKENS) or stream.prompt_tokens
        counts = (
            bounds.count_or_none(_as_mapping(chunk.get(name)).get(key), MAX_TOKENS) for name, key in self._counter_keys
        )
        token_count = next(filter(None, counts), 0)
        choices = chunk.get("choices")
        deltas = [
            _as_mapping(_as_mapping(choice).get("delta")) for choice in (choices if isinstance(choices, list) else ())
        ]
        has_text = any(openai_api.has_generated_text(delta) for delta in deltas)
        if deltas and token_count and not self._chunks:
            self._has_cumulative_usage = True
            if token_count > stream.tokens:
                self._add_point(at_s, token_count, deltas)
            return
        if has_text and not self._has_cumulative_usage:
            self._chunks += 1
            self._add_point(at_s, self._chunks, deltas)
        stream.total = token_count or stream.total

    def _add_point(self, at_s: float, tokens: int, deltas: list[dict[str, Any]]) -> None:
        self._has_visible_output = self._has_visible_output or any(
            openai_api.has_visible_content(delta) for delta in deltas
        )
        if not self._has_visible_output:
            self.stream.thinking_tokens = tokens
        self.stream.points.append((at_s, tokens))

    def finish(self) -> Stream:
        """Return the stream. If only the final number of tokens is known, they are distributed evenly over the chunks."""
        stream, chunks, total = self.stream, self._chunks, self.stream.total
        if not self._has_cumulative_usage and total and chunks:
            stream.thinking_tokens = round(stream.thinking_tokens * total / chunks)
            stream.points = [(at_s, round(n * total / chunks)) for at_s, n in stream.points]
        stream.approximate = not self._has_cumulative_usage and not total
        return stream


def _parse_object(data: bytes, tokens: int = 0) -> dict[str, Any]:
    """Return a chunk's JSON. Raises StreamError. tokens: number of tokens before the chunk, for the error."""
    try:
        chunk = bounds.parse_json(data)
    except ValueError:
        raise StreamError("a chunk is not JSON", tokens=tokens) from None
    if not isinstance(chunk, dict):
        raise StreamError("a chunk is not a JSON object", tokens=tokens)
    return chunk


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_json_or_text(data: bytes) -> Any:
    try:
        return bounds.parse_json(data)
    except ValueError:
        return data.decode(errors="replace")


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


def _parse_refusal(body: bytes) -> str:
    try:
        error = http_probe.extract_error(bounds.parse_json(body))
    except ValueError:
        error = ""
    return error or body[:200].decode(errors="replace") or "no message"

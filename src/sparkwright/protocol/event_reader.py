"""Read the events that a host sends: validate them, limit their size, and escape invisible characters.

Invalid lines become `raw` events, so that no output of a host is lost. No input raises an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sparkwright.protocol.event_shapes import EVENT_FIELDS
from sparkwright.protocol.events import MAX_LINE_BYTES, Event
from sparkwright.trust.bounds import MAX_JSON_VALUES, parse_json, sanitize
from sparkwright.trust.shapes import moment, validate
from sparkwright.visible import escape_invisible

#: maximum size of an event that is sent in parts
MAX_CHARACTERS = 16 * 2**20
#: maximum length of the text of a `raw` event
MAX_RAW_CHARACTERS = 2000


class EventReader:
    """Reads the events of one response from chunks of bytes of any size."""

    def __init__(self) -> None:
        self._lines = LineSplitter(MAX_LINE_BYTES)
        self._parts: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events whose last byte is in this chunk."""
        for line, skipped_bytes in self._lines.feed(data):
            yield from self._read_event(line, skipped_bytes)

    def end(self) -> Iterator[Event]:
        """Yield the event after the last newline, if there is one."""
        for line, skipped_bytes in self._lines.end():
            yield from self._read_event(line, skipped_bytes)

    def _read_event(self, line: bytes, skipped_bytes: int) -> Iterator[Event]:
        if skipped_bytes:
            yield raw_event(line, f" ({skipped_bytes} more bytes: a line must have at most {MAX_LINE_BYTES} bytes)")
            return
        if not line.strip():
            return
        event = parse_line(line)
        if event["event"] != "part":
            yield event
            return
        text = self._join_parts(event)
        if text is not None:
            full_line = text.encode(errors="replace")
            event = parse_line(full_line)
            yield event if event["event"] != "part" else raw_event(full_line)

    def _join_parts(self, part: Event) -> str | None:
        """Return the text of an event if this is its last part, else None. Parts out of order or too large are dropped."""
        if part["n"] == 1:
            self._parts, self._size = [], 0
        self._size += len(part["text"])
        if part["n"] == len(self._parts) + 1 and self._size <= MAX_CHARACTERS:
            self._parts.append(part["text"])
        if part["n"] != part["of"]:
            return None
        parts, self._parts = self._parts, []
        return "".join(parts) if len(parts) == part["of"] else f"an incomplete answer of {self._size} characters"


def parse_line(line: bytes) -> Event:
    try:
        event = parse_json(line.decode(errors="replace"), max_bytes=MAX_CHARACTERS, max_values=MAX_JSON_VALUES)
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or kind not in EVENT_FIELDS:
            return raw_event(line)
        if kind == "part":
            part: Event = validate(event, EVENT_FIELDS[kind], kind)
            return part  # invisible characters are escaped in the joined text
        return _with_valid_time(validate(sanitize(event), EVENT_FIELDS[kind], kind))
    except ValueError as error:
        return raw_event(line, f" ({error})" if line[:1] == b"{" else "")


def raw_event(line: bytes, reason: str = "") -> Event:
    """Return a `raw` event for an invalid line. reason: why the line is invalid, appended to it."""
    text = line[: 4 * MAX_RAW_CHARACTERS].decode(errors="replace").rstrip("\r\n")
    ellipsis = " ..." if len(text) > MAX_RAW_CHARACTERS or len(line) > 4 * MAX_RAW_CHARACTERS else ""
    return {
        "event": "raw",
        "time": round(time.time(), 3),
        "text": escape_invisible(text[:MAX_RAW_CHARACTERS] + ellipsis + reason),
    }


def _with_valid_time(event: Event) -> Event:
    """Return the event with this machine's time if its own is invalid."""
    try:
        moment(event.get("time"))
    except ValueError:
        return {**event, "time": round(time.time(), 3)}
    return event


class LineSplitter:
    """Splits bytes into lines. max_bytes: maximum size of a line; the rest is skipped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._kept_bytes = 0
        self._skipped_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield each line that ends in this chunk, without newline, and the number of its skipped bytes."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._append(data[start:end])
            yield self._take_line()
            start = end + 1
        self._append(data[start:])

    def end(self) -> Iterator[tuple[bytes, int]]:
        """Yield the line after the last newline, if there is one."""
        if self._kept_bytes:
            yield self._take_line()

    def _append(self, piece: bytes) -> None:
        head = piece[: self._max_bytes - self._kept_bytes]
        self._skipped_bytes += len(piece) - len(head)
        self._kept_bytes += len(head)
        if head:
            self._pending.append(head)

    def _take_line(self) -> tuple[bytes, int]:
        line, skipped_bytes = b"".join(self._pending), self._skipped_bytes
        self._pending, self._kept_bytes, self._skipped_bytes = [], 0, 0
        return line, skipped_bytes

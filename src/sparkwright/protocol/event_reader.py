"""Reader of the events that a host sends: bounded, of a known kind with the fields of that kind, every text visible.

Anything else becomes `raw`, so that no output of a host is lost; no input makes this raise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sparkwright.protocol.event_shapes import EVENT_FIELDS
from sparkwright.protocol.events import LINE_BYTES, Event
from sparkwright.trust.bounds import MAX_JSON_VALUES, parse_json, sanitize
from sparkwright.trust.shapes import moment, validate
from sparkwright.visible import escape_invisible

#: characters of one event that came in parts, and of a line that is shown as it is
MAX_CHARACTERS = 16 * 2**20
MAX_RAW_CHARACTERS = 2000


class EventReader:
    """Reads the events of one answer from its bytes, in chunks of any size."""

    def __init__(self) -> None:
        self._lines = LineSplitter(LINE_BYTES)
        self._parts: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that end in these bytes."""
        for piece, skipped_bytes in self._lines.feed(data):
            yield from self._read_event(piece, skipped_bytes)

    def end(self) -> Iterator[Event]:
        """Yield the event after the last newline, if there is one."""
        for piece, skipped_bytes in self._lines.end():
            yield from self._read_event(piece, skipped_bytes)

    def _read_event(self, line: bytes, skipped_bytes: int) -> Iterator[Event]:
        if skipped_bytes:
            yield raw_event(line, f" (and {skipped_bytes} bytes more: a line is at most {LINE_BYTES} bytes)")
            return
        if not line.strip():
            return
        event = parse_line(line)
        if event["event"] != "part":
            yield event
            return
        text = self._join_parts(event)
        if text is not None:
            full = text.encode(errors="replace")
            event = parse_line(full)
            yield event if event["event"] != "part" else raw_event(full)

    def _join_parts(self, part: Event) -> str | None:
        """Return the text of an event if this is its last part. Parts out of order, and beyond MAX_CHARACTERS, are dropped."""
        if part["n"] == 1:
            self._parts, self._size = [], 0
        self._size += len(part["text"])
        if part["n"] == len(self._parts) + 1 and self._size <= MAX_CHARACTERS:
            self._parts.append(part["text"])
        if part["n"] != part["of"]:
            return None
        parts, self._parts = self._parts, []
        return "".join(parts) if len(parts) == part["of"] else f"an answer of {self._size} characters that is not whole"


def parse_line(line: bytes) -> Event:
    try:
        event = parse_json(line.decode(errors="replace"), max_bytes=MAX_CHARACTERS, max_values=MAX_JSON_VALUES)
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or kind not in EVENT_FIELDS:
            return raw_event(line)
        if kind == "part":
            part: Event = validate(event, EVENT_FIELDS[kind], kind)
            return part  # its text is a piece of JSON, cleaned with the whole
        return _with_valid_time(validate(sanitize(event), EVENT_FIELDS[kind], kind))
    except ValueError as error:
        return raw_event(line, f" ({error})" if line[:1] == b"{" else "")


def raw_event(line: bytes, reason: str = "") -> Event:
    """Return a `raw` event for an invalid line. reason: what is wrong with it."""
    text = line[: 4 * MAX_RAW_CHARACTERS].decode(errors="replace").rstrip("\r\n")
    ellipsis = " ..." if len(text) > MAX_RAW_CHARACTERS or len(line) > 4 * MAX_RAW_CHARACTERS else ""
    return {
        "event": "raw",
        "time": round(time.time(), 3),
        "text": escape_invisible(text[:MAX_RAW_CHARACTERS] + ellipsis + reason),
    }


def _with_valid_time(event: Event) -> Event:
    """Return the event with a valid time: this machine's, if the host's is not."""
    try:
        moment(event.get("time"))
    except ValueError:
        return {**event, "time": round(time.time(), 3)}
    return event


class LineSplitter:
    """Splits bytes into lines.

    max_bytes: bytes of a line that are kept; the rest of a longer one is skipped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._kept_bytes = 0
        self._skipped_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the lines that end in these bytes, without their newline, each with the number of its skipped bytes."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._append(data[start:end])
            yield self._take_line()
            start = end + 1
        self._append(data[start:])

    def end(self) -> Iterator[tuple[bytes, int]]:
        """Yield what follows the last newline, if anything does."""
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

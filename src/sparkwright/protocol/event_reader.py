"""Reader of the events that a host sends: bounded, of a known kind with the fields of that kind, every text visible.

Anything else becomes `raw`, so that no output of a host is lost; no input makes this raise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sparkwright.protocol.event_kinds import KINDS
from sparkwright.protocol.events import LINE_BYTES, Event
from sparkwright.trust.bounds import PARTS, clean, json_of
from sparkwright.trust.lines import Lines
from sparkwright.trust.shapes import fitted, moment
from sparkwright.visible import visible

#: characters of one event that came in parts, and of a line that is shown as it is
MOST_CHARACTERS = 16 * 2**20
RAW_CHARACTERS = 2000


class Received:
    """Reads the events of one answer from its bytes, in chunks of any size."""

    def __init__(self) -> None:
        self._lines = Lines(LINE_BYTES)
        self._parts: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that end in these bytes."""
        for line, over in self._lines.feed(data):
            yield from self._event(line, over)

    def end(self) -> Iterator[Event]:
        """Yield the event after the last newline, if there is one."""
        for line, over in self._lines.end():
            yield from self._event(line, over)

    def _event(self, line: bytes, over: int) -> Iterator[Event]:
        if over:
            yield raw(line, f" (and {over} bytes more: a line is at most {LINE_BYTES} bytes)")
            return
        if not line.strip():
            return
        event = read(line)
        if event["event"] != "part":
            yield event
            return
        text = self._complete(event)
        if text is not None:
            full = text.encode(errors="replace")
            event = read(full)
            yield event if event["event"] != "part" else raw(full)

    def _complete(self, part: Event) -> str | None:
        """Return the text of an event if this is its last part. Parts out of order, and beyond MOST_CHARACTERS, are dropped."""
        if part["n"] == 1:
            self._parts, self._size = [], 0
        self._size += len(part["text"])
        if part["n"] == len(self._parts) + 1 and self._size <= MOST_CHARACTERS:
            self._parts.append(part["text"])
        if part["n"] != part["of"]:
            return None
        parts, self._parts = self._parts, []
        return "".join(parts) if len(parts) == part["of"] else f"an answer of {self._size} characters that is not whole"


def read(line: bytes) -> Event:
    try:
        event = json_of(line.decode(errors="replace"), most_bytes=MOST_CHARACTERS, most_parts=PARTS)
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or kind not in KINDS:
            return raw(line)
        if kind == "part":
            found: Event = fitted(event, KINDS[kind], kind)
            return found  # its text is a piece of JSON, cleaned with the whole
        return _stamped(fitted(clean(event), KINDS[kind], kind))
    except ValueError as error:
        return raw(line, f" ({error})" if line[:1] == b"{" else "")


def raw(line: bytes, why: str = "") -> Event:
    """Return a `raw` event for an invalid line. why: what is wrong with it."""
    text = line[: 4 * RAW_CHARACTERS].decode(errors="replace").rstrip("\r\n")
    more = " ..." if len(text) > RAW_CHARACTERS or len(line) > 4 * RAW_CHARACTERS else ""
    return {"event": "raw", "time": round(time.time(), 3), "text": visible(text[:RAW_CHARACTERS] + more + why)}


def _stamped(event: Event) -> Event:
    """Return the event with a valid time: this machine's, if the host's is not."""
    try:
        moment(event.get("time"))
    except ValueError:
        return {**event, "time": round(time.time(), 3)}
    return event

"""Reader of the events that a host sends: bounded, of a known kind with the fields of that kind, every text visible.

Anything else becomes `raw`, so that no output of a host is lost; no input makes this raise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sparkwright.errors import Exit
from sparkwright.protocol import events
from sparkwright.protocol.events import LINE_BYTES, STATUSES, Event
from sparkwright.trust.bounds import PARTS, clean, json_of
from sparkwright.trust.names import STEP
from sparkwright.trust.shapes import Shape, Usual, fitted, line, moment, within
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
        for piece, over in self._lines.feed(data):
            yield from self._event(piece, over)

    def end(self) -> Iterator[Event]:
        """Yield the event after the last newline, if there is one."""
        for piece, over in self._lines.end():
            yield from self._event(piece, over)

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


# The events that a host may send, by kind, with the shapes of their fields. Further fields are kept.
#
# Events that the laptop creates itself (play_started, rolled ...) are not among them: no host speaks for the fleet.


def exit_code(value: Any) -> int:
    """Shape of an exit code; an unknown one is a failure."""
    known = not isinstance(value, bool) and isinstance(value, int) and value in list(Exit)
    return int(value) if known else int(Exit.FAILED)


#: characters of a host's sentence; a longer one is cut, with a mark
SENTENCE = 20_000


def text(value: Any) -> str:
    """Shape of a text to read."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return visible(value, at_most=SENTENCE)


#: files in a bundle of an incident; host/records/incidents.py describes each
INCIDENT_FILES = frozenset(
    (
        *("about.json", "container.log", "inspect.json", "meminfo", "holders.txt", "dmesg.txt"),
        *("docker-ps.txt", "nvidia-smi.txt", "plan.json", "events.jsonl", "memory.txt"),
    )
)
COUNT = within(0, 2**53)
#: a year: longer than any run, and valid in every format of a duration
SECONDS = Usual(within(0, 366 * 86400), 0)
TEXT = Usual(text, "")
LINE = Usual(line, "")
FLAG = Usual(bool, False)
OBJECT = Usual({str: object}, {})
BYTES = Usual((None, COUNT), None)
#: of a task that runs or has run
TASK: dict[str, Shape] = {"task": line, "name": line, "module": line, "where": LINE, "stage": LINE}
CHANGE: dict[str, Shape] = {"field": line, "before": Usual(object, None), "after": Usual(object, None), "why": TEXT}

KINDS: dict[str, dict[str, Shape]] = {
    "alive": {},
    "raw": {"text": text},
    "note": {"task": LINE, "text": text, "detail": FLAG},
    "part": {"n": COUNT, "of": COUNT, "text": str},
    "run_started": {"run": LINE, "play": LINE, "check": FLAG, "who": LINE, "sandbox": FLAG},
    "task_started": TASK,
    "progress": {"task": LINE, "done": COUNT, "total": COUNT, "unit": LINE, "text": LINE},
    "task_finished": {
        **TASK,
        "status": frozenset(STATUSES),
        "msg": TEXT,
        "proof": FLAG,
        "fix": TEXT,
        "diff": Usual([CHANGE], []),
        "data": OBJECT,
        "register": LINE,
        "registered": OBJECT,
        "exit": Usual(exit_code, int(Exit.OK)),
        "seconds": SECONDS,
    },
    "recap": {
        **dict.fromkeys(events.COUNTS, COUNT),
        **dict.fromkeys(events.RARE, Usual(COUNT, 0)),
        "exit": exit_code,
        "seconds": SECONDS,
        "msg": TEXT,
    },
    # answers to a question
    "run": {"run": line, "play": Usual((None, line), None), "who": Usual((None, line), None), "state": line},
    "status": {
        "record": {"state": line, "why": text},
        "live": bool,
        "late": bool,
        "busy": line,
        "outdated": Usual(line, ""),
        "interrupted": Usual(line, ""),
        "memory_available_bytes": BYTES,
        "memory_total_bytes": BYTES,
        "load_s": Usual({str: within(0, 366 * 86400)}, {}),
        "traffic": Usual({str: within(0, 1e18)}, {}),
        "gateway": OBJECT,
    },
    "checks": {"fields": [str], "rows": [[object]]},
    "history": {
        "at": moment,
        "what": line,
        **dict.fromkeys(("who", "run", "container_id", "image", "model", "commit"), Usual((None, line))),
        **dict.fromkeys(("arguments", "cluster", "why"), Usual((None, line))),
        "changed": Usual((None, [CHANGE])),
        "measured": Usual((None, {str: object})),
        "memory": OBJECT,
    },
    "file": {"incident": STEP, "name": INCIDENT_FILES, "text": str},
    "lock": {"owner": (None, {"run": line}), "alive": bool, "text": text},
    # answers in place of a runner
    "runtime_missing": {"path": str, "python": str, "machine": str},
    "no_python": {},
    "ready": {},
    "shipped": {},
    "not_shipped": {"why": line},
}


class Lines:
    """Splits bytes into lines.

    at_most: bytes of a line that are kept; the rest of a longer one is skipped.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._pending: list[bytes] = []
        self._kept = 0
        self._over = 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the lines that end in these bytes, without their newline, each with the number of its skipped bytes."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            yield self._taken()
            start = end + 1
        self._keep(data[start:])

    def end(self) -> Iterator[tuple[bytes, int]]:
        """Yield what follows the last newline, if anything does."""
        if self._kept:
            yield self._taken()

    def _keep(self, piece: bytes) -> None:
        kept = piece[: self._at_most - self._kept]
        self._over += len(piece) - len(kept)
        self._kept += len(kept)
        if kept:
            self._pending.append(kept)

    def _taken(self) -> tuple[bytes, int]:
        line, over = b"".join(self._pending), self._over
        self._pending, self._kept, self._over = [], 0, 0
        return line, over

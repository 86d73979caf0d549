"""Events: what a run says while it goes on, one JSON object a line.

Subscribers (console, `--json`, journal, lock file) read the same stream; the runner knows none of them.

    run_started     run, host, play, playbook, check, who, schema
    task_started    task (id), name, module, where
    progress        task, done, total, unit ("bytes", "tokens", "s", ""), text      total 0: not known
                    parts: of a download, the files under way (path, done, total, rate, left_s)
    note            task, text                                                       a sentence worth a line
    task_finished   task, name, module, status, msg, diff, data, seconds, fix, exit  status: one of STATUSES
    recap           host, ok, changed, failed, skipped, unreachable, exit, seconds, msg
    part            n, of, text                                                      a piece of an event longer than a line
Every event has `event` and `time` (seconds since the epoch). kinds.py says which fields a host's events have.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.trust.redact import Redactor

SCHEMA = 1
STATUSES = ("ok", "changed", "failed", "skipped", "rescued", "ignored")
#: how the sentence of a skipped task begins that check mode can't try: it waits for what an earlier task would change
KNOWN_AFTER = "known after: "
#: no line between host and laptop is longer; what does not fit goes in parts of so many characters (at most 4 bytes each)
LINE_BYTES = 2**20
PART_CHARACTERS = 200_000

Event = dict[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


def event(kind: str, /, **fields: Any) -> Event:
    """An event of this kind, stamped with the time."""
    return {"event": kind, "time": round(time.time(), 3), **fields}


def encode(event: Event, hidden: Redactor | None = None) -> bytes:
    """One line, ready for the events file, without the secrets that `hidden` knows."""
    line = _line(event)
    return _line(hidden.event(event)) if hidden is not None and hidden.hides(line) else line


def lines(event: Event, hidden: Redactor | None = None) -> Iterator[bytes]:
    """An event as it goes over the wire: one line, or, when that is longer than LINE_BYTES, several `part` events."""
    line = encode(event, hidden)
    if len(line) <= LINE_BYTES:
        yield line
        return
    text = line.decode()
    starts = range(0, len(text), PART_CHARACTERS)
    for n, start in enumerate(starts, 1):
        yield _line({"event": "part", "n": n, "of": len(starts), "text": text[start : start + PART_CHARACTERS]})


def decode(line: bytes | str) -> Event:
    """The event of a line that this machine wrote itself; one that is none becomes `raw`. received.py reads those of others."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and isinstance(data.get("event"), str):
        return data
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return {"event": "raw", "text": text.rstrip("\n")}


def _line(event: Event) -> bytes:
    """An event as JSON. What is no Unicode, as in the name of a file, is written as its escape."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode() + b"\n"

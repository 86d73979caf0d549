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
import time
from collections.abc import Iterator
from typing import Any

SCHEMA = 1
STATUSES = ("ok", "changed", "failed", "skipped", "rescued", "ignored")
#: how the sentence of a skipped task begins that check mode can't try: it waits for what an earlier task would change
KNOWN_AFTER = "known after: "
#: no line between host and laptop is longer; what does not fit goes in parts of so many characters (at most 4 bytes each)
LINE_BYTES = 2**20
PART_CHARACTERS = 200_000

Event = dict[str, Any]


def event(kind: str, /, **fields: Any) -> Event:
    """An event of this kind, stamped with the time."""
    return {"event": kind, "time": round(time.time(), 3), **fields}


def encode(one: Event) -> bytes:
    """One line, ready for the events file."""
    text = json.dumps(one, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode(errors="backslashreplace") + b"\n"  # half a surrogate pair becomes its JSON escape


def lines(one: Event) -> Iterator[bytes]:
    """An event as it goes over the wire: one line, or, when that is longer than LINE_BYTES, several `part` events."""
    line = encode(one)
    if len(line) <= LINE_BYTES:
        yield line
        return
    text = line.decode()
    starts = range(0, len(text), PART_CHARACTERS)
    for n, start in enumerate(starts, 1):
        yield encode({"event": "part", "n": n, "of": len(starts), "text": text[start : start + PART_CHARACTERS]})


def decode(line: bytes | str) -> Event:
    """The event of a line that this machine wrote itself; one that is none becomes `raw`. received.py reads those of others."""
    try:
        one = json.loads(line)
    except (ValueError, RecursionError):
        one = None
    if isinstance(one, dict) and isinstance(one.get("event"), str):
        return one
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return {"event": "raw", "text": text.rstrip("\n")}

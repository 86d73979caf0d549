"""Events: what a run says while it goes on, one JSON object a line.

Subscribers (console, `--json`, journal, lock file) read the same stream; the runner knows none of them.

    run_started     run, host, play, playbook, check, who, schema
    task_started    task (id), name, module, where
    progress        task, done, total, unit ("bytes", "tokens", "s", ""), text      total 0: not known
                    parts: of a download, the files under way (path, done, total, rate, left_s)
    note            task, text                                                       a sentence worth a line
    task_finished   task, name, module, status, msg, diff, data, seconds, fix, exit  status: one of STATUSES
    recap           host, ok, changed, failed, skipped, unreachable, exit, seconds, msg
Every event has `event` and `time` (seconds since the epoch).
"""

from __future__ import annotations

import json
import time
from typing import Any

SCHEMA = 1
STATUSES = ("ok", "changed", "failed", "skipped", "rescued", "ignored")
#: how the sentence of a skipped task begins that check mode can't try: it waits for what an earlier task would change
KNOWN_AFTER = "known after: "

Event = dict[str, Any]


def event(kind: str, /, **fields: Any) -> Event:
    """An event of this kind, stamped with the time."""
    return {"event": kind, "time": round(time.time(), 3), **fields}


def encode(one: Event) -> bytes:
    """One line, ready for the events file."""
    return json.dumps(one, ensure_ascii=False, separators=(",", ":"), default=str).encode() + b"\n"


def decode(line: bytes | str) -> Event:
    """The event of a line; a line that is not one becomes `raw`, so that nothing a host says is lost."""
    try:
        one = json.loads(line)
    except (ValueError, RecursionError):
        one = None
    if isinstance(one, dict) and "event" in one:
        return one
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return {"event": "raw", "text": text.rstrip("\n")}

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
import re
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.trust.redact import Redactor

SCHEMA = 1
STATUSES = ("ok", "changed", "failed", "skipped", "rescued", "ignored")
#: how the sentence of a skipped task begins that check mode can't try: it waits for what an earlier task would change
KNOWN_AFTER = "known after: "

Event = dict[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


def event(kind: str, /, **fields: Any) -> Event:
    """An event of this kind, stamped with the time."""
    return {"event": kind, "time": round(time.time(), 3), **fields}


def encode(one: Event, hidden: Redactor | None = None) -> bytes:
    """One line, ready for the events file, without the secrets that `hidden` knows."""
    line = _line(one)
    return _line(hidden.event(one)) if hidden is not None and hidden.hides(line) else line


def decode(line: bytes | str) -> Event:
    """The event of a line; a line that is not one becomes `raw`, so that nothing a host says is lost."""
    try:
        one = json.loads(line)
    except ValueError:
        one = None
    if isinstance(one, dict) and "event" in one:
        return one
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return {"event": "raw", "text": text.rstrip("\n")}


def _line(one: Event) -> bytes:
    """An event as JSON. What is no Unicode, as in the name of a file, is written as its escape."""
    text = json.dumps(one, ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode() + b"\n"

"""Events: the progress of a run, one JSON object per line.

All subscribers (console, `--json`, journal, lock file) read the same stream; the runner does not depend on them.

    run_started     run, host, play, playbook, check, who, schema
    task_started    task (id), name, module, where, stage
    progress        task, done, total, unit ("bytes", "tokens", "s", ""), text      total 0: unknown
                    parts: of a download, the files in progress (path, done, total, rate, left_s)
    note            task, text, detail                                               a message on a separate line
                    detail: True if it is shown only in task-by-task output
    task_finished   task, name, module, where, stage, status, msg, diff, data, seconds, fix, exit
                    status: one of STATUSES; proof: True if the message reports what a check proved
    recap           host, ok, changed, failed, skipped, unreachable, exit, seconds, msg
    part            n, of, text                                                      a part of an event over MAX_LINE_BYTES
Every event has `event` and `time` (seconds since the epoch). The fields of a host's events are in event_shapes.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Exit, Failed, SparkwrightError, Unreachable

if TYPE_CHECKING:
    from sparkwright.trust.redact import Redactor


SCHEMA = 1
STATUSES = ("ok", "changed", "failed", "skipped", "rescued", "ignored")
#: prefix of the message of a task that check mode skips because it depends on an earlier task's change or loads the server
KNOWN_AFTER_PREFIX = "known after: "
#: maximum size of a line between host and laptop; longer events are sent in parts of PART_CHARACTERS (at most 4 bytes each)
MAX_LINE_BYTES = 2**20
PART_CHARACTERS = 200_000

Event = dict[str, Any]

_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
#: counts of a recap in display order; RARE_COUNTS are shown only if they are not 0
COUNTS = ("ok", "changed", "failed", "skipped", "unreachable")
RARE_COUNTS = ("rescued", "ignored")


def event(kind: str, /, **fields: Any) -> Event:
    """Return an event with the current time."""
    return {"event": kind, "time": round(time.time(), 3), **fields}


def encode(event: Event, redactor: Redactor | None = None) -> bytes:
    """Return an event's line, including the newline, without the secrets of `redactor`."""
    line = _encode_json(event)
    return _encode_json(redactor.redact_event(event)) if redactor is not None and redactor.has_secret(line) else line


def encode_lines(event: Event, redactor: Redactor | None = None) -> Iterator[bytes]:
    """Yield the lines in which an event is sent: one, or `part` events if it is longer than MAX_LINE_BYTES."""
    line = encode(event, redactor)
    if len(line) <= MAX_LINE_BYTES:
        yield line
        return
    text = line.decode()
    starts = range(0, len(text), PART_CHARACTERS)
    for n, start in enumerate(starts, 1):
        yield _encode_json({"event": "part", "n": n, "of": len(starts), "text": text[start : start + PART_CHARACTERS]})


def decode(line: bytes | str) -> Event:
    """Return the event in a line that this machine wrote; an invalid line becomes a `raw` event.

    Lines from other machines are read with event_reader.py.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and isinstance(data.get("event"), str):
        return data
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return {"event": "raw", "text": text.rstrip("\n")}


def _encode_json(event: Event) -> bytes:
    """Return an event as a line of JSON. Surrogates, as in file names that are not UTF-8, are escaped."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return _SURROGATE_PATTERN.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode() + b"\n"


def build_error_recap(host: str, error: SparkwrightError, seconds: float = 0.0, *, msg: str = "") -> Event:
    """Return the recap of a host whose run ended with an error. msg: replaces the error's message."""
    outcome = "unreachable" if isinstance(error, Unreachable) or error.exit is Exit.UNREACHABLE else "failed"
    counts = {name: int(name == outcome) for name in COUNTS}
    return event(
        "recap",
        host=host,
        **counts,
        exit=int(_failure_exit_code(error.exit)),
        seconds=round(seconds, 3),
        msg=msg or str(error),
    )


def merge_recaps(previous: Event | None, current: Event) -> Event:
    """Return the recap of several plays on one host: `current` with the sums of all counts."""
    if previous is None:
        return current
    return {
        **current,
        **{key: previous.get(key, 0) + current.get(key, 0) for key in (*COUNTS, *RARE_COUNTS, "seconds")},
    }


def format_recap(recap: Mapping[str, Any]) -> str:
    """Return the counts as text: "ok=3 changed=1 failed=0 skipped=0 unreachable=0"."""
    names = (*COUNTS, *(name for name in RARE_COUNTS if recap.get(name)))
    return " ".join(f"{name}={recap[name]}" for name in names)


def find_recap(events: Iterable[Event]) -> Event | None:
    return next((event for event in events if event["event"] == "recap"), None)


def build_recap_error(recap: Event | None, default_message: str = "the host gave no answer.") -> SparkwrightError:
    """Return the error to raise for a recap, with its exit code and its message, or `default_message` if it has none."""
    error = Failed((recap or {}).get("msg") or default_message)
    error.exit = _failure_exit_code(recap["exit"] if recap else Exit.FAILED)
    return error


def _failure_exit_code(code: int) -> Exit:
    """Return the exit code of a run that did not succeed: FAILED instead of a success code."""
    return Exit.FAILED if code in (Exit.OK, Exit.CHANGES) else Exit(code)

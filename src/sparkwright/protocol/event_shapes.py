"""Shapes of the events that a host may send, by kind. Additional fields are kept.

Events about the whole fleet (play_started, rolled ...) are created on the laptop and refused from a host.
"""

from __future__ import annotations

from typing import Any

from sparkwright.errors import Exit
from sparkwright.protocol import events
from sparkwright.protocol.events import STATUSES
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.shapes import OptionalField, Shape, line, moment, number_between
from sparkwright.visible import escape_invisible

#: length to which a string from a host is truncated
MAX_TEXT_CHARACTERS = 20_000
#: files of an incident bundle, described in host/records/incidents.py
INCIDENT_FILES = frozenset(
    (
        *("about.json", "container.log", "inspect.json", "meminfo", "holders.txt", "dmesg.txt"),
        *("docker-ps.txt", "nvidia-smi.txt", "plan.json", "events.jsonl", "memory.txt"),
    )
)
COUNT = number_between(0, 2**53)
#: duration of at most a year, which is longer than any run and fits every display format
SECONDS = OptionalField(number_between(0, 366 * 86400), 0)
LINE = OptionalField(line, "")
FLAG = OptionalField(bool, False)
OBJECT = OptionalField({str: object}, {})
BYTES = OptionalField((None, COUNT), None)
#: fields of a task that is running or has finished
TASK_FIELDS: dict[str, Shape] = {"task": line, "name": line, "module": line, "where": LINE, "stage": LINE}


def exit_code(value: Any) -> int:
    """Shape of an exit code; unknown codes become Exit.FAILED."""
    is_known = not isinstance(value, bool) and isinstance(value, int) and value in list(Exit)
    return int(value) if is_known else int(Exit.FAILED)


def text(value: Any) -> str:
    """Shape of a string for display: invisible characters are escaped, and long strings are truncated."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return escape_invisible(value, max_chars=MAX_TEXT_CHARACTERS)


TEXT = OptionalField(text, "")
CHANGE_SHAPE: dict[str, Shape] = {
    "field": line,
    "before": OptionalField(object, None),
    "after": OptionalField(object, None),
    "why": TEXT,
}

EVENT_FIELDS: dict[str, dict[str, Shape]] = {
    "alive": {},
    "raw": {"text": text},
    "note": {"task": LINE, "text": text, "detail": FLAG},
    "part": {"n": COUNT, "of": COUNT, "text": str},
    "run_started": {"run": LINE, "play": LINE, "check": FLAG, "who": LINE, "sandbox": FLAG},
    "task_started": TASK_FIELDS,
    "progress": {"task": LINE, "done": COUNT, "total": COUNT, "unit": LINE, "text": LINE},
    "task_finished": {
        **TASK_FIELDS,
        "status": frozenset(STATUSES),
        "msg": TEXT,
        "proof": FLAG,
        "fix": TEXT,
        "diff": OptionalField([CHANGE_SHAPE], []),
        "data": OBJECT,
        "register": LINE,
        "registered": OBJECT,
        "exit": OptionalField(exit_code, int(Exit.OK)),
        "seconds": SECONDS,
    },
    "recap": {
        **dict.fromkeys(events.COUNTS, COUNT),
        **dict.fromkeys(events.RARE_COUNTS, OptionalField(COUNT, 0)),
        "exit": exit_code,
        "seconds": SECONDS,
        "msg": TEXT,
    },
    # answers to requests
    "run": {
        "run": line,
        "play": OptionalField((None, line), None),
        "who": OptionalField((None, line), None),
        "state": line,
    },
    "status": {
        "record": {"state": line, "why": text},
        "live": bool,
        "late": bool,
        "busy": line,
        "outdated": OptionalField(line, ""),
        "interrupted": OptionalField(line, ""),
        "memory_available_bytes": BYTES,
        "memory_total_bytes": BYTES,
        "now_s": OptionalField((None, moment), None),
        "load_s": OptionalField({str: number_between(0, 366 * 86400)}, {}),
        "traffic": OptionalField({str: number_between(0, 1e18)}, {}),
        "gateway": OBJECT,
    },
    "checks": {"fields": [str], "rows": [[object]]},
    "history": {
        "at": moment,
        "what": line,
        **dict.fromkeys(("who", "run", "container_id", "image", "model", "commit"), OptionalField((None, line))),
        **dict.fromkeys(("arguments", "cluster", "why"), OptionalField((None, line))),
        "changed": OptionalField((None, [CHANGE_SHAPE])),
        "measured": OptionalField((None, {str: object})),
        "memory": OBJECT,
    },
    "file": {"incident": PATH_COMPONENT, "name": INCIDENT_FILES, "text": str},
    "lock": {"owner": (None, {"run": line}), "alive": bool, "text": text},
    # answers of the bootstrap script before the runner can be started
    "runtime_missing": {"path": str, "python": str, "machine": str},
    "no_python": {},
    "ready": {},
    "shipped": {},
    "not_shipped": {"why": line},
}

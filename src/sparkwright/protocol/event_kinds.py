"""The events that a host may send, by kind, with the shapes of their fields. Further fields are kept.

Events that the laptop creates itself (play_started, rolled ...) are not among them: no host speaks for the fleet.
"""

from __future__ import annotations

from typing import Any

from sparkwright.errors import Exit
from sparkwright.protocol import recap
from sparkwright.protocol.events import STATUSES
from sparkwright.trust.names import STEP
from sparkwright.trust.shapes import Shape, Usual, line, moment, within
from sparkwright.visible import visible


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

#: of a diagnosis
CAUSE: dict[str, Shape] = {"cause": text, "verdict": line, "evidence": TEXT, "fix": TEXT}

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
        **dict.fromkeys(recap.COUNTS, COUNT),
        **dict.fromkeys(recap.RARE, Usual(COUNT, 0)),
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
    "diagnosis": {
        "schema": COUNT,
        **dict.fromkeys(("state", "summary"), text),
        "fix": TEXT,
        "exit": exit_code,
        **dict.fromkeys(("tok_per_s", "expected_tok_per_s"), Usual((None, within(0, 1e6)), None)),
        "expected_by": Usual((None, line), None),
        "container": OBJECT,
        "gpu": OBJECT,
        "causes": [CAUSE],
        "sandbox": FLAG,
    },
    "checks": {"fields": [str], "rows": [[object]]},
    "history": {
        "at": moment,
        "what": line,
        **dict.fromkeys(("who", "run", "image", "model", "commit", "arguments", "cluster", "why"), Usual((None, line))),
        "changed": Usual((None, [CHANGE])),
        "measured": Usual((None, {str: object})),
        "memory": OBJECT,
    },
    "file": {"incident": STEP, "name": INCIDENT_FILES, "text": str},
    "serving": {"serving": bool},
    "lock": {"owner": (None, {"run": line}), "alive": bool, "text": text},
    # answers in place of a runner
    "runtime_missing": {"path": str, "python": str, "machine": str},
    "no_python": {},
    "ready": {},
    "shipped": {},
    "not_shipped": {"why": line},
}

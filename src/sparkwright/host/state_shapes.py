"""The files of the state folder, and of what kind their readers count on each part to be. What is not named is left as it is."""

from __future__ import annotations

import re
from typing import Any

from sparkwright.trust.shape import (
    Shape,
    anything,
    flag,
    list_of,
    number,
    optional,
    row_of,
    table_of,
    text,
    whole_number,
)

_SPEC = Shape(
    {
        **dict.fromkeys(("name", "image", "restart", "gpus", "ipc", "shm_size", "server_key"), text),
        **dict.fromkeys(("ports", "volumes", "command", "image_ids"), list_of(text)),
        **dict.fromkeys(("env", "ulimits", "labels"), table_of(text)),
        "entrypoint": optional(list_of(text)),
    },
    strict=True,  # a server that is made again from half of it would be another one
)
_MODEL = Shape(
    {
        **dict.fromkeys(("id", "commit", "dir"), optional(text)),
        "files": list_of(lambda one: Shape({"path": text, "size_bytes": number}, ("path",)).of(one) is not None),
    }
)
_SERVE = Shape(
    {"served_name": text, **dict.fromkeys(("utilization", "ready_s", "tok_per_s", "stop_timeout_s"), optional(number))}
)
GOOD = Shape(
    {
        "spec": _SPEC,
        "model": _MODEL,
        "serve": _SERVE,
        "measured": Shape({"ready_s": optional(number)}),
        "held_bytes": optional(number),
        "since": number,
        "restart_count": whole_number,
        "container_id": text,
        "run": text,
    }
)
_SPEED = Shape(
    {name: optional(number) for name in ("tok_per_s", "baseline_tok_per_s", "ttft_s", "measured_s")}
    | {"verdict": text},
    strict=True,
)
_COUNTED = Shape(
    {"time_s": number, "start": text, "token": text, "running": optional(number), "generated": optional(number)},
    ("time_s",),
    strict=True,
)


def _rates(value: Any) -> bool:
    return table_of(number)(value) and bool(value) and min(value.values()) > 0


_BASELINE = Shape(
    {
        "tok_per_s": _rates,
        "deviation": number,
        "runs": whole_number,
        "clock_mhz": optional(number),
        "key": table_of(anything),
    },
    ("tok_per_s", "deviation", "runs"),
)

_PROVED = table_of(lambda row: isinstance(row, list) and len(row) == 4 and all(map(number, row[:3])) and text(row[3]))
_MANIFEST = Shape(
    {
        "folder": text,
        "files": _PROVED,
        "staged": _PROVED,
        "indexes": table_of(row_of(list_of(number), list_of(text))),
        "about": Shape({"id": text, "commit": text, "paths": list_of(text)}),
    }
)
_SETTINGS = Shape(
    {
        **dict.fromkeys(("host", "webhook", "webhook_file", "textfile"), text),
        **dict.fromkeys(("every_s", "smoke_every_s", "heal_every_s"), lambda value: number(value) and value >= 0),
        "smoke_tokens": whole_number,
        "command": list_of(text),
        "lingers": flag,
        "limits": table_of(number),
        "heal": lambda value: value in ("none", "restart"),
    }
)

#: by the name of the file, or of its folder, or by what stands before its first hyphen
SHAPES: dict[str, Shape] = {
    "verified": GOOD,
    "verified_before": Shape({"states": list_of(lambda one: isinstance(one, dict))}),
    "previous": Shape({**dict.fromkeys(("id", "name", "policy", "run"), text), "running": flag}, ("id",)),
    "restarts": Shape({"id": text, "seen": list_of(row_of(number, whole_number))}),
    "stopping": Shape(
        {"id": text, "run": text, "available_bytes": number, "since": number, "held_bytes": optional(number)},
        ("id", "available_bytes"),
    ),
    "before_start": Shape({"available_bytes": number, "run": text}, ("available_bytes",)),
    "engines": Shape({"version": optional(text), "listed": list_of(text)}, ("version", "listed")),
    "baselines": _BASELINE,
    "model": _MANIFEST,
    "health-settings": _SETTINGS,
    "health-remembered": Shape(
        {
            "since_s": number,
            "cures": whole_number,
            "failed": whole_number,
            "answered": text,
            "told": text,
            "seen": list_of(text),
            "state": optional(text),
            "broken": table_of(text),
            "heals": list_of(number),
            "counted": _COUNTED,
            "speed": _SPEED,
        }
    ),
}


def shape_of(name: str) -> Shape:
    """The shape of a state by its name, as "verified" or "baselines/0123abcd"."""
    return SHAPES.get(name) or SHAPES.get(re.split("[/-]", name)[0], Shape())

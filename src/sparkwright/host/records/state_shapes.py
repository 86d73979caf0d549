"""Schemas of the JSON files in the state folder. Reading drops invalid fields and keeps unknown ones, except where strict."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sparkwright import defaults
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust.bounds import MAX_NUMBER
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.shapes import (
    Partial,
    Shape,
    check_engine_options,
    integer,
    number,
    number_between,
    row,
    text,
    validate,
    writable,
)

#: shapes of ContainerSpec's fields, by their annotations
_TYPE_SHAPES: dict[str, Shape] = {
    "str": text,
    "tuple[str, ...]": [text],
    "tuple[str, ...] | None": (None, [text]),
    "dict[str, str]": {text: text},
    "bool": bool,
    "bool | None": (None, bool),
    "int": integer,
    "float": number,
}
_SPEC = Partial(
    {field.name: _TYPE_SHAPES[str(field.type)] for field in dataclasses.fields(ContainerSpec)},
    strict=True,  # a server recreated from an incomplete spec would differ from the verified one
)
_MODEL_FIELDS: dict[str, Shape] = {
    **dict.fromkeys(("id", "commit", "dir"), (None, text)),
    "files": [Partial({"path": text, "size_bytes": number}, ("path",))],
}
_MODEL = Partial({**_MODEL_FIELDS, "models": [Partial({**_MODEL_FIELDS, "role": text}, ("role", "dir"))]})
_LOG = Partial({**dict.fromkeys(("chunked_prefill", "note", "unknown"), text), "expect": [text], "forbid": [text]})
_BYTES = number_between(0, MAX_NUMBER)
_ENGINE_MEMORY = Partial(
    {
        **dict.fromkeys(("bytes", "weights_bytes", "host_bytes", "value", "per_token_bytes"), _BYTES),
        **dict.fromkeys(("share", "start_share"), number_between(0, 1)),
        "parts": [
            Partial(
                {
                    **dict.fromkeys(("name", "source"), text),
                    "size_bytes": _BYTES,
                    **dict.fromkeys(("assumed", "later", "host"), bool),
                },
                ("name", "source", "size_bytes"),
                strict=True,
            )
        ],
        "flag": text,
        "compiles": bool,
        "start": {text: text},
        "shm": Partial({"host": bool, "size_bytes": _BYTES}, strict=True),
    },
    strict=True,
)
_SERVE = Partial(
    {
        "served_name": text,
        "engine_memory": _ENGINE_MEMORY,
        **dict.fromkeys(("utilization", "needs_bytes", "ready_s", "tok_per_s", "stop_timeout_s"), (None, number)),
        "log": _LOG,
        "baseline_key": {text: writable},
    }
)
VERIFIED_STATE_SHAPE = Partial(
    {
        "spec": _SPEC,
        "model": _MODEL,
        "serve": _SERVE,
        "measured": Partial({"ready_s": (None, number), "load_s": {text: number}}),
        "held_bytes": (None, number),
        "left_bytes": (None, number),
        "guard_gib": number,
        "since": number,
        "restart_count": integer,
        "container_id": text,
        "run": text,
        "script": text,
        "generation": text,
        # of a gateway
        "digest": PATH_COMPONENT,
        "models": [text],
        "proof": Partial({"name": text, "port": integer, "keyed": bool, "tls": bool, "models": {text: {text: object}}}),
        "restored_at": number,
    }
)
_SPEED = Partial(
    dict.fromkeys(("tok_per_s", "baseline_tok_per_s", "ttft_s", "measured_s"), (None, number)) | {"verdict": text},
    strict=True,
)
_EMPTY_OBJECT = Partial(strict=True)
#: a health check's record of the server's counters
_COUNTED = Partial(
    {"time_s": number, "start": text, "token": text}
    | dict.fromkeys(("running", "generated", "heartbeat"), (None, number)),
    ("time_s",),
    strict=True,
)
#: how to wake a server on demand, in its restart plan
_WAKE = Partial(
    {"on_request": bool, "gateways": [{text: writable}], "plan": {text: object}}
    | dict.fromkeys(("sleep_after_s", "stay_awake_s"), number),
    ("on_request", "sleep_after_s", "stay_awake_s", "gateways", "plan"),
    strict=True,
)
#: a health check's record of this rank's place in its group
_JOINED = Partial(
    {"start": text, "rank": integer, "world": integer, "transport": text},
    ("start", "rank", "world", "transport"),
    strict=True,
)


def _validate_rates(value: Any) -> Any:
    rates = validate(value, {text: number}, "")
    if not rates or min(rates.values()) <= 0:
        raise ValueError("has no rate above 0")
    return rates


def _non_empty_list(shape: Shape) -> Shape:
    def check(value: Any) -> Any:
        if not (elements := validate(value, [shape], "")):
            raise ValueError("is empty")
        return elements

    return check


_BASELINE = Partial(
    {
        "tok_per_s": _validate_rates,
        "deviation": number,
        "runs": integer,
        "clock_mhz": (None, number),
        "key": {text: writable},
    }
    | {"about": Partial({"kernels": {text: [text]}, "gpu": {text: (None, number)}, "depth": {text: number}})},
    ("tok_per_s", "deviation", "runs"),
)
START_MEMORY_SHAPE = Partial(
    {
        **dict.fromkeys(("name", "image", "model", "arguments", "gpu_source", "run"), text),
        **dict.fromkeys(("before_bytes", "lowest_bytes", "after_bytes"), _BYTES),
        **dict.fromkeys(("gpu_bytes", "host_bytes", "kv_tokens", "full_requests"), (None, _BYTES)),
        "cold": bool,
        "at": number,
    },
    ("name", "image", "model", "arguments", "cold", "at", "before_bytes", "lowest_bytes", "after_bytes"),
)
_CHOICE = row(text, number)
_REFERENCE = Partial(
    {
        "prompts": integer,
        "since": number,
        "texts": [Partial({"text": text, "steps": [_non_empty_list(_CHOICE)]}, ("text", "steps"), strict=True)],
        "key": {text: writable},
    },
    ("prompts", "texts"),
    strict=True,
)


def _validate_stamp(value: Any) -> Any:
    """Validate the stamp and hash of a file. Earlier versions wrote four fields, without the ctime."""
    last = (text,) if isinstance(value, list) and len(value) == 4 else (number, text)
    return validate(value, row(number, number, number, *last), "")


_VERIFIED_FILES = {text: _validate_stamp}
_MANIFEST = Partial(
    {
        "folder": text,
        "files": _VERIFIED_FILES,
        "staged": _VERIFIED_FILES,
        "indexes": {text: row([number], [text])},
        "about": Partial({"id": text, "commit": text, "paths": [text]}),
    }
)
_SETTINGS = Partial(
    {
        **dict.fromkeys(("host", "webhook", "webhook_file", "textfile"), text),
        **dict.fromkeys(("every_s", "smoke_every_s", "heal_every_s"), number_between(0, MAX_NUMBER)),
        "smoke_tokens": integer,
        "command": [text],
        **dict.fromkeys(("lingers", "wake"), bool),
        "limits": {text: number},
        "heal": frozenset(defaults.HEAL_MODES),
        "webhook_format": frozenset(defaults.WEBHOOK_FORMATS),
    }
)

#: shapes by file name or, if there are many files of a kind, by their folder or the part of their names before the first hyphen
SHAPES: dict[str, Partial] = {
    "verified": VERIFIED_STATE_SHAPE,
    "verified_before": Partial({"states": [{}]}),
    "previous": Partial(
        {**dict.fromkeys(("id", "name", "policy", "run", "attempt"), text), "running": bool, "started": bool}, ("id",)
    ),
    "restarts": Partial({"id": text, "seen": [row(number, integer)]}),
    "stopping": Partial(
        {"id": text, "run": text, "available_bytes": number, "since": number, "held_bytes": (None, number)},
        ("id", "available_bytes"),
    ),
    "before_start": Partial({"available_bytes": number, "run": text}, ("available_bytes",)),
    "start_memory": Partial({"version": integer, "starts": [{}]}, ("version", "starts")),
    "restart_plans": Partial({"runtime": text, "plan": {text: object}, "wake": _WAKE}, ("runtime", "plan")),
    "format": Partial({"format": integer, "version": text}, ("format", "version")),
    "engines": Partial({"version": (None, text), "options": check_engine_options}, ("version",)),
    "baselines": _BASELINE,
    "references": _REFERENCE,
    "compile_caches": Partial(
        dict.fromkeys(
            ("container", "image", "image_id", "model", "commit", "container_id", "why_aside", "frozen"), text
        )
        | {"proved": bool, "warm": bool, "used_s": number}
    ),
    "model": _MANIFEST,
    "health-settings": _SETTINGS,
    "gateway-key": Partial({"key": text}, ("key",), strict=True),
    "drained": Partial({"gateways": [{text: writable}], "since": number, "run": text}, ("gateways", "since")),
    "guarded": Partial({"seen_s": number}),
    "lost": Partial(
        {**dict.fromkeys(("key", "name", "container_id", "why"), text), "since": number, "available_bytes": number},
        ("key", "why"),
    ),
    "interim": Partial(
        {"name": text, "gateways": [{text: writable}], "since": number, "run": text},
        ("name", "gateways", "since"),
    ),
    "turns": Partial(
        {"awake": text, "servers": [text], "since": number, "run": text}, ("awake", "servers"), strict=True
    ),
    "wake": Partial(
        {
            **dict.fromkeys(("home", "woken", "begun", "run"), text),
            "took_s": {text: number},
            "messages": {text: text},
            "failures": {text: Partial({"count": integer, "time_s": number, "why": text}, ("count", "time_s", "why"))},
        }
    ),
    "heal-token": Partial({"token": text}, ("token",), strict=True),
    "health-remembered": Partial(
        {
            "since_s": number,
            "cures": integer,
            "failed": integer,
            "answered": text,
            "notified": text,
            "seen": [text],
            "state": (None, text),
            "broken": {text: text},
            "heals": [number],
            "counted": (_EMPTY_OBJECT, _COUNTED),
            "joined": (_EMPTY_OBJECT, _JOINED),
            "speed": _SPEED,
        }
    ),
}


def shape_of(name: str) -> Partial:
    """Return the schema of the record `name`, such as "verified" or "baselines/0123abcd"."""
    return SHAPES.get(name) or SHAPES.get(re.split("[/-]", name)[0], Partial())

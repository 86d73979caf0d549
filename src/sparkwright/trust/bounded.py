"""JSON from outside: how deep, how many parts, how large a number; and every text of it made visible."""

from __future__ import annotations

import json
from typing import Any

from sparkwright.trust.visible import visible

#: far above what an honest answer has: docker's own inspect is 8 deep
DEPTH = 32
#: of one document; some 100 MiB as Python's objects
PARTS = 1_000_000
#: bytes, tokens, nanoseconds: no figure of a host is larger, and every format and sum of two takes it
LARGEST = 2**63


def json_value(data: bytes) -> Any:
    """The value of a document. `clean` is for what is shown of it. Raises ValueError that says why there is none."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > PARTS:
        raise ValueError("has too many parts")
    try:
        return json.loads(data.decode(errors="replace"))
    except RecursionError:
        raise ValueError("is nested too deep") from None


def clean(value: Any, depth: int = DEPTH) -> Any:
    """A value of JSON with every text visible, keys too. A number that is none (NaN) or beyond LARGEST is null: not known;
    what JSON does not have (a path) is its text.

    Raises ValueError beyond so many levels.
    """
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else None  # NaN is not
    if depth <= 0:
        raise ValueError("is nested too deep")
    if isinstance(value, dict):
        return {visible(key): clean(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one, depth - 1) for one in value]
    return visible(str(value))

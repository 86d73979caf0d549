"""Validation of the options that a host reports for its image's engine, before they are used or kept."""

from __future__ import annotations

import re
from typing import Any

#: vLLM 0.32.0 has 320 options, and the longest list of choices has 900 characters
MOST, SHAPE_CHARS = 2000, 8000
_VERSION = re.compile(r"\d[\w.+-]{0,40}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,100}")
_SHAPE = re.compile(r"[\w .,{}?*+:/-]*")


def engine_options(value: Any) -> dict[str, Any] | None:
    """Return a valid {"like": VERSION, "differ": {name: shape or null}} or None. Raises ValueError for anything else."""
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"like", "differ"} or not isinstance(value["differ"], dict):
        raise ValueError("are no options: {like: VERSION, differ: {NAME: SHAPE}}.")
    if not isinstance(value["like"], str) or not _VERSION.fullmatch(value["like"]):
        raise ValueError("`like` names no version.")
    rows = value["differ"].items()
    if len(rows) > MOST or not all(_is_row(name, shape) for name, shape in rows):
        raise ValueError("`differ` holds what is no option.")
    return value


def _is_row(name: Any, shape: Any) -> bool:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return False
    return shape is None or (isinstance(shape, str) and len(shape) <= SHAPE_CHARS and bool(_SHAPE.fullmatch(shape)))

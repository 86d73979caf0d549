"""Readers of the build and the options of the llama-server in an image. Never guessed from the tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sparkwright.engines.llama_cpp import flag_values, help_text, options

#: the official image's entrypoint
PROGRAM = "/app/llama-server"
ASK_VERSION = (PROGRAM, "--version")
ASK_OPTIONS = (PROGRAM, "--help")
LIKE = f"b{options.NEWER}"
#: "version: 10434 (7e4c0a9)", and later "version: 0.1.0-dev (build 10434, commit 7e4c0a9)"
_VERSION = re.compile(r"^version: (?:\S+ \(build )?(\d{4,6})\b", re.M)


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return None: the image's labels and variables do not name the build."""
    return None


def version_in(text: str) -> str | None:
    """Return the build in the output of `llama-server --version`, as b11549."""
    found = _VERSION.search(text)
    return f"b{found[1]}" if found else None


def listed(text: str) -> dict[str, str]:
    """Return the options in a help text with the number of words that each takes; empty if it is not a list of options."""
    return {name: str(option.takes) for name, option in help_text.listed(text).items()}


@lru_cache(maxsize=1)
def usual() -> Mapping[str, str]:
    """Return the options of the newest build in options.py, with the number of words that each takes."""
    takes = {"switch": "0", "bare": "0", "two": "2"}
    return {
        name: takes.get(option.kind, "1")
        for name, option in flag_values.known().items()
        if flag_values.exists(name, options.NEWER)
    }


def difference(shapes: Mapping[str, str]) -> dict[str, Any]:
    """Return the difference from the usual list: {"like": BUILD, "differ": {name: words, or None if it is gone}}."""
    gone: dict[str, str | None] = dict.fromkeys(name for name in usual() if name not in shapes)
    return {
        "like": LIKE,
        "differ": {**gone, **{name: shape for name, shape in shapes.items() if usual().get(name) != shape}},
    }


def is_current(difference: Mapping[str, Any] | None) -> bool:
    """Return True if `applied` can use the stored difference, or the image listed no options; else run the image again."""
    return difference is None or difference.get("like") == LIKE


def applied(difference: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the options from a stored difference; empty if none was stored, or the build it refers to is no longer known here."""
    if difference is None or not is_current(difference):
        return {}
    return {name: value for name, value in {**usual(), **difference["differ"]}.items() if value}

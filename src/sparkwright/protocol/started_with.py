"""The fingerprint of a server's options, apart from image and model: servers with the same one were started alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Return the fingerprint of a container's command and environment, in any order; 12 hexadecimal digits."""
    about = [sorted(options(spec.get("command") or ())), sorted((spec.get("env") or {}).items())]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]


def start_key(spec: Mapping[str, Any], commit: str) -> dict[str, str]:
    """Return the key of a start: image (its digest), model (its commit), arguments, caches (of its compile cache)."""
    image = str(spec.get("image") or "")
    key = {"image": image.partition("@")[2] or image, "model": commit, "arguments": fingerprint(spec)}
    return {**key, "caches": str(spec.get("caches") or "")}


def options(words: Sequence[Any]) -> list[str]:
    """Return the options of a command, each with its values, so that they can be sorted."""
    grouped: list[str] = []
    for word in map(str, words):
        if word.startswith("--") or not grouped:
            grouped.append(word)
        else:
            grouped[-1] += f" {word}"
    return grouped

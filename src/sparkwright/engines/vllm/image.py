"""The places in an image that state its vLLM version. The version is never guessed from the tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.vllm import versions
from sparkwright.engines.vllm.option_values import KEPT, listed

__all__ = ["ASK_OPTIONS", "ASK_VERSION", "applied", "difference", "is_current", "listed", "version_in", "version_of"]

#: labels and variables that name the engine's version, best first.
#: Sources: NGC images set VLLM_VERSION; sparkwright's own test images set the label.
LABELS = ("ai.vllm.version",)
VARIABLES = ("VLLM_VERSION",)
LONGEST_VERSION = 80
ASK_VERSION = ("vllm", "--version")
ASK_OPTIONS = ("vllm", "serve", "--help=all")
difference, is_current, applied = KEPT.difference, KEPT.is_current, KEPT.applied


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return the engine's version in an image's Config; None if it holds none (then ask GET /version)."""
    labels = config.get("Labels") or {}
    variables = dict(pair.partition("=")[::2] for pair in config.get("Env") or ())
    answer = [labels.get(name) for name in LABELS] + [variables.get(name) for name in VARIABLES]
    return next((text for text in answer if text and _is_version(text)), None)


def _is_version(text: str) -> bool:
    return len(text) <= LONGEST_VERSION and text == text.strip() and versions.parse(text) is not None


def version_in(text: str) -> str | None:
    """Return the version in the output of `vllm --version`, among whatever else its imports print."""
    words = (line.strip().rpartition(" ")[2] for line in reversed(text.splitlines()))
    return next((word for word in words if "." in word and _is_version(word)), None)

"""Read the version and options of the vLLM in an image from its labels, variables or output. The tag is not used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.vllm import option_values, versions

#: labels and variables with the engine's version: NGC images set VLLM_VERSION, sparkwright's test images the label
VERSION_LABELS = ("ai.vllm.version",)
VERSION_VARIABLES = ("VLLM_VERSION",)
MAX_VERSION_CHARS = 80
VERSION_COMMAND = ("vllm", "--version")
HELP_COMMAND = ("vllm", "serve", "--help=all")
parse_options, _STORED_OPTIONS = option_values.parse_options, option_values.STORED_OPTIONS
difference, is_current, restore_options = (
    _STORED_OPTIONS.difference,
    _STORED_OPTIONS.is_current,
    _STORED_OPTIONS.restore_options,
)


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return the engine's version from an image's Config; None if absent (GET /version returns it)."""
    labels = config.get("Labels") or {}
    variables = dict(pair.partition("=")[::2] for pair in config.get("Env") or ())
    candidates = [labels.get(name) for name in VERSION_LABELS] + [variables.get(name) for name in VERSION_VARIABLES]
    return next((text for text in candidates if text and _is_version(text)), None)


def _is_version(text: str) -> bool:
    return len(text) <= MAX_VERSION_CHARS and text == text.strip() and versions.parse(text) is not None


def parse_version(text: str) -> str | None:
    """Return the version in the output of `vllm --version`, which may include output of its imports; None if absent."""
    words = (line.strip().rpartition(" ")[2] for line in reversed(text.splitlines()))
    return next((word for word in words if "." in word and _is_version(word)), None)

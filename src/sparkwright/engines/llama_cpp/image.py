"""Where an image says which build of llama.cpp it holds. Its options are not kept: the table of two builds is what is known.

Source: common/arg.cpp of b11434: `--version` prints "version: NUMBER (COMMIT)", and then how it was built, to the standard error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: where the images of ggml-org have it
PROGRAM = "/app/llama-server"
ASK_VERSION = (PROGRAM, "--version")
ASK_OPTIONS = (PROGRAM, "--help")
_VERSION = re.compile(r"^version: (\d{1,9}) \(", re.M)


def version_of(config: Mapping[str, Any]) -> str | None:
    """No label and no variable of these images says it."""
    return None


def version_in(text: str) -> str | None:
    """The build, as "b11434"."""
    found = _VERSION.search(text)
    return f"b{found[1]}" if found else None


def listed(text: str) -> dict[str, str]:
    """None are kept."""
    return {}


def difference(shapes: Mapping[str, str]) -> dict[str, Any]:
    """None are kept."""
    return {}


def is_current(difference: Mapping[str, Any] | None) -> bool:
    """Whatever was kept will do."""
    return True


def applied(difference: Mapping[str, Any] | None) -> dict[str, str]:
    """None were kept."""
    return {}

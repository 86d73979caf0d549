"""The host's side of the package: which files it is, their name by content, and where the laptop keeps what it makes of it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from sparkwright.trust import private

PACKAGE = Path(__file__).parent
#: the host's side, and nothing of the laptop's
PARTS = (
    "__init__.py",
    "defaults.py",
    "errors.py",
    "visible.py",
    "host_side.py",
    "secret.py",
    "ready.py",
    "shell.py",
    "units.py",
    "transport",
    "trust",
    "protocol",
    "engines",
    "guard",
    "gateway",
    "host",
    "modules",
    "measure",
    "doctor",
    "health",
    "runner",
)


def sources() -> Iterator[tuple[str, bytes]]:
    """Every file of the host's side in a fixed order: its path below the package, its content."""
    for part in PARTS:
        for path in [str(PACKAGE / part)] if part.endswith(".py") else _python_files(str(PACKAGE / part)):
            with open(path, "rb", buffering=0) as file:
                yield os.path.relpath(path, PACKAGE), file.read()


@functools.lru_cache(maxsize=1)
def content_hash() -> str:
    """Names the content of the host's side."""
    total = hashlib.sha256()
    for name, data in sources():
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()[:20]


def cache() -> Path:
    """The laptop's folder for what is made of it, closed to others: hosts run what it holds. It can all be made again."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkwright"
    with contextlib.suppress(OSError):  # who uses it says so
        private.folder(path)
    return path


def _python_files(folder: str) -> list[str]:
    """By os.walk: every command asks, and Path.rglob takes twice as long."""
    return sorted(f"{at}/{name}" for at, _, names in os.walk(folder) for name in names if name.endswith(".py"))

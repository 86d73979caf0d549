"""The part of the package that runs on hosts: its files, their hash, and the laptop's cache folder."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from sparkwright.trust import private

PACKAGE_FOLDER = Path(__file__).parent
#: files and subpackages that are copied to hosts
HOST_SIDE_PATHS = (
    "__init__.py",
    "defaults.py",
    "errors.py",
    "visible.py",
    "host_side.py",
    "secret.py",
    "ready.py",
    "shell.py",
    "units.py",
    "version.py",
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


def iter_sources() -> Iterator[tuple[str, bytes]]:
    """Yield the path inside the package and the content of each file that runs on hosts, in a fixed order."""
    for part in HOST_SIDE_PATHS:
        for path in [str(PACKAGE_FOLDER / part)] if part.endswith(".py") else _list_files(str(PACKAGE_FOLDER / part)):
            with open(path, "rb", buffering=0) as file:
                yield os.path.relpath(path, PACKAGE_FOLDER), file.read()


@functools.lru_cache(maxsize=1)
def content_hash() -> str:
    """Return the hash of the code that runs on hosts: 20 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, data in iter_sources():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:20]


def cache_folder() -> Path:
    """Return the laptop's cache folder. Other users can't access it, because hosts run what it contains. It can be rebuilt."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkwright"
    with contextlib.suppress(OSError):  # reported when the cache is written
        private.create_folder(path)
    return path


def _list_files(folder: str) -> list[str]:
    """Return the Python files and JSON tables below a folder.

    Every command calls this; Path.rglob takes twice as long as os.walk.
    """
    return sorted(
        f"{parent}/{name}" for parent, _, names in os.walk(folder) for name in names if name.endswith((".py", ".json"))
    )

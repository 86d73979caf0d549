"""The folder of a shipped runtime, as used by the process that runs from it. Imports the standard library only.

manifest.json    size and SHA-256 of every file
tag              the Python version and processor architecture that it was built for
lock             locked by processes that run from it
in-use           exists if a timer starts the runtime (health/schedule.py)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path


def unusable_reason(folder: str) -> str:
    """Return why this runtime can't be used here; empty if it can. Compares only file sizes, since it runs at every start."""
    runtime_tag = _read_text(f"{folder}/tag").strip()
    host_tag = f"{sys.version_info[0]}.{sys.version_info[1]}-{os.uname().machine}"
    if runtime_tag != host_tag:
        return f"it was built for {runtime_tag or 'an unknown platform'}, this host is {host_tag}"
    try:
        for name, (size, _) in json.loads(_read_text(f"{folder}/manifest.json")).items():
            if os.stat(f"{folder}/{name}").st_size != size:  # noqa: PTH116 - 700 files: Path takes twice as long
                return f"{name} is damaged"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"manifest.json is damaged: {error}"
    return ""


def hold_usable(folder: str) -> str:
    """Lock a runtime as `hold` does. Returns why the runtime can't be used, or an empty string if it can."""
    return unusable_reason(folder) if hold(folder) else "it was removed in the meantime"


def hold(folder: str) -> bool:
    """Protect a runtime from removal while this process or its forks are running. Returns False if it was removed already."""
    try:
        lock_fd = os.open(f"{folder}/lock", os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock_fd, fcntl.LOCK_SH)
        return os.fstat(lock_fd).st_ino == Path(folder, "lock").stat().st_ino
    except FileNotFoundError:
        return False


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""

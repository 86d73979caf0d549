"""The folder of a shipped runtime, from the view of the process that runs from it. Standard library only.

manifest.json    every file's size and SHA-256           tag       the Python version and processor it was built for lock
flocked by processes that run from it   in-use    a timer starts it: see health/schedule.py
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path


def unusable_reason(folder: str) -> str:
    """Return the reason why this runtime cannot be used here; empty if it can. Compares sizes only: it runs at every start."""
    made_for, host_tag = (
        _read_text(f"{folder}/tag").strip(),
        f"{sys.version_info[0]}.{sys.version_info[1]}-{os.uname().machine}",
    )
    if made_for != host_tag:
        return f"it was built for {made_for or 'nothing'}, this host is {host_tag}"
    try:
        for name, (size, _) in json.loads(_read_text(f"{folder}/manifest.json")).items():
            if os.stat(f"{folder}/{name}").st_size != size:  # noqa: PTH116 - 900 files: Path takes twice as long
                return f"{name} is damaged"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"manifest.json is damaged: {error}"
    return ""


def hold_usable(folder: str) -> str:
    """Hold a runtime. Returns the reason if it cannot be used, else ""."""
    return unusable_reason(folder) if hold(folder) else "it was removed in the meantime"


def hold(folder: str) -> bool:
    """Keep the runtime from being removed while this process, or a fork of it, lives. Returns False if it is already removed."""
    try:
        number = os.open(f"{folder}/lock", os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_SH)
        return os.fstat(number).st_ino == Path(folder, "lock").stat().st_ino
    except FileNotFoundError:
        return False


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""

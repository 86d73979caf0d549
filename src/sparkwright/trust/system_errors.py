"""Errors of the operating system as sentences: a full disk, a read-only folder, a home that is a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

#: a disk with less free space than this, a line of a log, is full
ROOM_BYTES = 4096


def sentence(error: BaseException) -> str:
    """Return where and why it failed; empty for an error that is not the system's.

    A failed write names no file: then the full disk is looked up.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return ""
    place = error.filename
    if place is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        import tempfile

        place = full([Path.cwd(), Path(os.path.expanduser("~")), Path(tempfile.gettempdir())])  # noqa: PTH111
    return f"{place}: {error.strerror}." if place else f"{error.strerror}."


def full(places: Iterable[Path]) -> Path | None:
    """Return the first of some folders (or their existing parents) whose disk is full; None if none is."""
    for place in places:
        there = next((parent for parent in (place, *place.parents) if parent.exists()), None)
        if there is None:
            continue
        found = os.statvfs(there)
        if found.f_bavail * found.f_frsize < ROOM_BYTES:
            return there
    return None

"""Root's own runtime, on hosts that require one: `become` runs it instead of the user's.

Any program of the user can change the user's own runtime. If this folder exists, root imports from nowhere else, and refuses a
version that is not in it.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import sparkwright
from sparkwright.errors import Refused

#: the folder in which `runtime.install` puts runtimes, by content hash
FOLDER = Path("/opt/sparkwright/runtime")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def resolve_library(runtimes: Path = FOLDER) -> Path:
    """Return the folder from which root imports sparkwright: the one of this process, or root's own copy of it.

    Raises:
        Refused: The host requires root's own runtimes, and has none of this version, or one that others may change.
    """
    own_library = Path(sparkwright.__file__).parents[1]
    if not runtimes.is_dir():
        return own_library
    name = own_library.parent.name
    installed = runtimes / name / "lib"
    fix = "Run `invoke runtime.install` for this host; it needs sudo there. docs/security.md says what it is for."
    if not installed.is_dir():
        raise Refused(
            f"root runs from {runtimes} on this host, and this version ({name}) is not installed there.", fix=fix
        )
    if unsafe := find_changeable(installed / "sparkwright") or find_changeable(Path(sys.executable).resolve()):
        raise Refused(f"{unsafe} can be changed by others than root, and root would run it.", fix=fix)
    return installed


def find_changeable(path: Path) -> Path | None:
    """Return the first of a path and its parents that another user than root may change or replace; None if there is none."""
    for parent in (path, *path.parents):
        status = parent.lstat()
        if stat.S_ISLNK(status.st_mode) or status.st_uid != 0 or status.st_mode & OTHERS_WRITE:
            return parent
    return None

"""Root's runtime, which tasks with `become` use instead of the user's on hosts where FOLDER exists.

Any of the user's programs can change the user's runtime. If the folder exists, root imports only from it, and a version that is
not installed in it is refused.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import sparkwright
from sparkwright.errors import Refused

#: the runtimes that `runtime.install` installed, by content hash
FOLDER = Path("/opt/sparkwright/runtime")
OTHERS_WRITE_BITS = stat.S_IWGRP | stat.S_IWOTH


def resolve_library(runtimes: Path = FOLDER) -> Path:
    """Return the folder from which root imports sparkwright: that of this process or, if `runtimes` exists, one in `runtimes`.

    Raises:
        Refused: `runtimes` exists, but this version is not installed there, or users other than root can change it.
    """
    library = Path(sparkwright.__file__).parents[1]
    if not runtimes.is_dir():
        return library
    name = library.parent.name
    installed_library = runtimes / name / "lib"
    fix = "Run `invoke runtime.install` for this host; it needs sudo there. See docs/security.md."
    if not installed_library.is_dir():
        message = f"root runs from {runtimes} on this host, and this version ({name}) is not installed there."
        raise Refused(message, fix=fix)
    if path := find_changeable(installed_library / "sparkwright") or find_changeable(Path(sys.executable).resolve()):
        raise Refused(f"{path} can be changed by users other than root, and root would run it.", fix=fix)
    return installed_library


def find_changeable(path: Path) -> Path | None:
    """Return the first path among `path` and its parents that users other than root can change or replace, or None."""
    for parent in (path, *path.parents):
        status = parent.lstat()
        if stat.S_ISLNK(status.st_mode) or status.st_uid != 0 or status.st_mode & OTHERS_WRITE_BITS:
            return parent
    return None

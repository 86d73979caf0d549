"""The owner of files that root wrote into a user's folder.

The user may rename, link and replace things there at any moment, so nothing is decided by a path: folders are opened without
following links, and the owner of an opened file is changed, never that of a name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_THING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def give_back(folder: Path, uid: int, gid: int) -> None:
    """Change the owner of root's files and folders below a user's folder to that user.

    Not changed: links, and their targets; a file with a second name, which may be one of the system's; files of other owners than
    root; other file systems; everything if the folder is not the user's.
    """
    with contextlib.suppress(OSError), _opened(folder) as top:
        found = os.fstat(top)
        if found.st_uid == uid != 0:
            _give_back(top, found.st_dev, uid, gid)


def _give_back(folder: int, device: int, uid: int, gid: int) -> None:
    for name in os.listdir(folder):
        with (
            contextlib.suppress(OSError),
            _opened(name, _THING, folder) as thing,
        ):  # it may be gone, or another one by now
            found = os.fstat(thing)
            if found.st_dev != device:
                continue
            if found.st_uid == 0 and (
                stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
            ):
                os.chown(f"/proc/self/fd/{thing}", uid, gid)
            if stat.S_ISDIR(found.st_mode):
                with _opened(f"/proc/self/fd/{thing}", _FOLDER & ~os.O_NOFOLLOW) as inner:
                    _give_back(inner, device, uid, gid)


@contextlib.contextmanager
def _opened(path: Path | str, flags: int = _FOLDER, folder: int | None = None) -> Iterator[int]:
    handle = os.open(path, flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)

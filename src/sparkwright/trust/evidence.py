"""Storage of the files that a host sends: in a folder made for them, each name from a list, nothing followed or replaced.

Accessible to this user alone: logs and inspects hold what was sent to a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sparkwright.errors import Failed, Refused
from sparkwright.trust import private
from sparkwright.trust.names import STEP, matched


def keep(folder: Path, files: Mapping[str, str]) -> None:
    """Create the folder and write the files into it. An existing empty folder is used.

    Raises Refused if something is there already, Failed if it can't be created or written.
    """
    for name in files:
        matched(STEP, name, "the name of a file")
    try:
        private.made(folder.parent)
        if folder.is_symlink() or not folder.is_dir() or any(folder.iterdir()):
            folder.mkdir(mode=private.FOLDER)
        into = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileExistsError:
        raise Refused(f"{folder} is there already.", fix="Remove it, or name another with --to.") from None
    except OSError as error:
        raise Failed(f"{folder} can't be made: {error.strerror}.") from None
    try:
        for name, text in files.items():
            _write(into, name, text)
    except OSError as error:
        raise Failed(f"{folder}: {error.strerror}.") from None
    finally:
        os.close(into)


def _write(into: int, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(name, flags, private.FILE, dir_fd=into), "w", encoding="utf-8", errors="replace") as file:
        os.fchmod(file.fileno(), private.FILE)
        file.write(text)

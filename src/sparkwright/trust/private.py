"""Creates folders and files that only their owner can access, with modes 0700 and 0600 regardless of the umask.

They contain records of runs, diagnostics, the host's lock, and data sent to hosts.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sparkwright.errors import Failed, Refused
from sparkwright.trust.names import PATH_COMPONENT, require_match

FOLDER_MODE, FILE_MODE = 0o700, 0o600
OTHERS_MASK = 0o077


def create_folder(path: Path) -> Path:
    """Create a folder and its missing parents, make it private to this user, and return it. Raises OSError."""
    create_missing_folders(path)
    restrict(path)
    return path


def create_missing_folders(path: Path) -> None:
    """Create a folder and its missing parents, private to this user. Existing folders are unchanged. Raises OSError."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)  # another command may create it at the same time


def restrict(path: Path) -> None:
    """Remove other users' permissions from a file or folder of this user; links and missing files are ignored."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if status.st_mode & OTHERS_MASK and status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
        _restrict_opened(path)


def _restrict_opened(path: Path) -> None:
    """Change the mode through a descriptor, because in another user's folder the name may be replaced by a link at any time.

    For root, files with several hard links are skipped, because they may be system files.
    """
    is_linux = hasattr(os, "O_PATH")
    descriptor = os.open(path, (os.O_PATH if is_linux else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        is_risky_for_root = stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and os.geteuid() == 0
        if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and not is_risky_for_root:
            mode = status.st_mode & ~OTHERS_MASK & 0o7777
            Path(f"/proc/self/fd/{descriptor}").chmod(mode) if is_linux else os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def restrict_tree(folder: Path) -> None:
    """Make a folder private to this user and, if it was open to others, everything in it. Raises OSError."""
    try:
        was_open = folder.stat().st_mode & OTHERS_MASK
    except FileNotFoundError:
        return
    restrict(folder)
    if was_open:
        for parent, folders, files in os.walk(folder):
            for name in (*folders, *files):
                restrict(Path(parent, name))


def opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=opener)`; a new file is accessible only to this user."""
    return os.open(path, flags, FILE_MODE)


def touch(path: Path) -> None:
    """Create an empty file unless it exists."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def is_locked(path: Path) -> bool:
    """Return True if another process holds a file's lock; also False if the file can't be read."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files from a host to a new or empty folder, private to this user because logs may contain requests to a server.

    Names are validated, links are not followed, and files are not replaced. Raises Refused if the folder is not empty, and Failed
    if it can't be created or written to.
    """
    for name in files:
        require_match(PATH_COMPONENT, name, "the name of a file")
    try:
        create_missing_folders(folder.parent)
        if folder.is_symlink() or not folder.is_dir() or any(folder.iterdir()):
            folder.mkdir(mode=FOLDER_MODE)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileExistsError:
        raise Refused(f"{folder} already exists.", fix="Remove it, or choose another folder with --to.") from None
    except OSError as error:
        raise Failed(f"cannot create {folder}: {error.strerror}.") from None
    try:
        for name, text in files.items():
            _write_file(folder_fd, name, text)
    except OSError as error:
        raise Failed(f"{folder}: {error.strerror}.") from None
    finally:
        os.close(folder_fd)


def _write_file(folder_fd: int, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(name, flags, FILE_MODE, dir_fd=folder_fd), "w", encoding="utf-8", errors="replace") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(text)

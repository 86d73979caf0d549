"""Read files and write them atomically, for the modules `file` and `template`."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from sparkwright.errors import Failed
from sparkwright.host.state import write_atomically
from sparkwright.protocol.result import Change

BECOME_FIX = "Add `become: true` to the task."


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a path."""

    path: Path
    #: file, directory, link, other or absent
    kind: str = "absent"
    #: such as "0644"
    mode: str = ""
    owner: str = ""
    group: str = ""
    #: None unless it is a readable file
    content: str | None = None

    @classmethod
    def read(cls, path: Path) -> FileState:
        """Read the state of a path. If it is a symlink, the state is that of the link. Raises Failed without permission."""
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return cls(path)
        except PermissionError:
            raise Failed(f"no permission to read {path}.", fix=BECOME_FIX) from None
        kinds = ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"))
        kind = next((name for test, name in kinds if test(status.st_mode)), "other")
        is_readable = kind == "file" and os.access(path, os.R_OK)
        content = path.read_bytes().decode(errors="surrogateescape") if is_readable else None
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return cls(path, kind, mode, *_owner_names(status), content)


@dataclass(frozen=True, slots=True)
class IntendedState:
    """The intended state of a path. A value that is empty or None is left as it is."""

    kind: str
    mode: str = ""
    owner: str = ""
    group: str = ""
    content: str | None = None


def differences(intended: IntendedState, current: FileState) -> list[Change]:
    """Return the differences, field by field."""
    if intended.kind == "absent":
        return [Change("state", current.kind, "absent")] if current.kind != "absent" else []
    changes = []
    if current.kind != intended.kind:
        changes.append(Change("state", None if current.kind == "absent" else current.kind, intended.kind))
    if intended.content is not None and intended.content != current.content:
        changes.append(Change("content", current.content, intended.content))
    for name in ("mode", "owner", "group"):
        expected, actual = getattr(intended, name), getattr(current, name)
        if expected and expected.zfill(4 if name == "mode" else 0) != actual and current.kind == intended.kind:
            changes.append(Change(name, actual, expected))
    return changes


def apply(intended: IntendedState, current: FileState) -> None:
    """Bring a path into the intended state. Raises Failed.

    A non-empty folder is removed only if the intended state is absent, never to make room for a file.
    """
    path = current.path
    try:
        if current.kind != "absent" and current.kind != intended.kind:
            _remove(current, recursive=intended.kind == "absent")
        if intended.kind == "absent":
            return
        mode = int(intended.mode or current.mode or ("0755" if intended.kind == "directory" else "0644"), 8)
        owner = _resolve_owner(intended)
        if intended.kind == "directory":
            path.mkdir(parents=True, exist_ok=True)
            _set_owner_and_mode(path, mode, owner)
        elif intended.content is not None and intended.content != current.content:
            write_atomically(path, intended.content.encode(errors="surrogateescape"), mode=mode, owner=owner)
        elif current.kind != "file":
            write_atomically(path, b"", mode=mode, owner=owner)
        else:
            _set_owner_and_mode(path, mode, owner)
    except PermissionError as error:
        raise Failed(f"no permission to change {error.filename or path}.", fix=BECOME_FIX) from None
    except LookupError as error:
        raise Failed(f"{path}: {error}.", fix="Create that user or group first.") from None
    except OSError as error:
        raise Failed(f"{path}: {error.strerror or error}.") from None


def _resolve_owner(intended: IntendedState) -> tuple[int, int]:
    """Return the ids of the intended owner and group, -1 to leave it unchanged. Raises LookupError for an unknown name."""
    try:
        uid = pwd.getpwnam(intended.owner).pw_uid if intended.owner else -1
    except KeyError:
        raise LookupError(f"no such user: {intended.owner!r}") from None
    try:
        return uid, grp.getgrnam(intended.group).gr_gid if intended.group else -1
    except KeyError:
        raise LookupError(f"no such group: {intended.group!r}") from None


def _set_owner_and_mode(path: Path, mode: int, owner: tuple[int, int]) -> None:
    """Set a path's owner and mode. Raises Failed if it was replaced with a symlink."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise Failed(f"{path} was replaced with a symlink.", fix="Check what else writes to that directory.")
        if owner != (-1, -1):
            os.chown(f"/proc/self/fd/{descriptor}", *owner)
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _remove(current: FileState, *, recursive: bool) -> None:
    if current.kind == "directory" and recursive:
        shutil.rmtree(current.path)
    elif current.kind == "directory":
        current.path.rmdir()
    else:
        current.path.unlink()


def _owner_names(status: os.stat_result) -> tuple[str, str]:
    """Return the names of the owner and group, or their ids if they have no names."""
    user, group = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return user, group

"""Reading and atomically writing files, for the modules `file` and `template`."""

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
    #: None if it is not a file, or not readable
    content: str | None = None

    @classmethod
    def at(cls, path: Path) -> FileState:
        """Read the state of a path, without following a final symbolic link."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return cls(path)
        kinds = ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"))
        kind = next((name for test, name in kinds if test(found.st_mode)), "other")
        content = (
            path.read_bytes().decode(errors="surrogateescape") if kind == "file" and os.access(path, os.R_OK) else None
        )
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return cls(path, kind, mode, *_names(found), content)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted state of a path. Empty or None: keep what it has."""

    kind: str
    mode: str = ""
    owner: str = ""
    group: str = ""
    content: str | None = None


def differences(wanted: Wanted, found: FileState) -> list[Change]:
    """Return the differences, field by field. Pure."""
    if wanted.kind == "absent":
        return [Change("state", found.kind, "absent")] if found.kind != "absent" else []
    changes = []
    if found.kind != wanted.kind:
        changes.append(Change("state", None if found.kind == "absent" else found.kind, wanted.kind))
    if wanted.content is not None and wanted.content != found.content:
        changes.append(Change("content", found.content, wanted.content))
    for name in ("mode", "owner", "group"):
        want, have = getattr(wanted, name), getattr(found, name)
        if want and want.zfill(4 if name == "mode" else 0) != have and found.kind == wanted.kind:
            changes.append(Change(name, have, want))
    return changes


def bring_about(wanted: Wanted, found: FileState) -> None:
    """Bring a path into the wanted state.

    Something of another kind in its place is only removed if it is a link or an empty folder.
    """
    path = found.path
    try:
        if found.kind != "absent" and found.kind != wanted.kind:
            _remove(found, deep=wanted.kind == "absent")
        if wanted.kind == "absent":
            return
        mode = int(wanted.mode or found.mode or ("0755" if wanted.kind == "directory" else "0644"), 8)
        owner = _ids(wanted)
        if wanted.kind == "directory":
            path.mkdir(parents=True, exist_ok=True)
            _settle(path, mode, owner)
        elif wanted.content is not None and wanted.content != found.content:
            write_atomically(path, wanted.content.encode(errors="surrogateescape"), mode=mode, owner=owner)
        elif found.kind != "file":
            write_atomically(path, b"", mode=mode, owner=owner)
        else:
            _settle(path, mode, owner)
    except PermissionError as error:
        raise Failed(
            f"no permission to change {error.filename or path}.", fix="Add `become: true` to the task."
        ) from None
    except LookupError as error:
        raise Failed(f"{path}: {error}.", fix="Create that user or group first.") from None
    except OSError as error:
        raise Failed(f"{path}: {error.strerror or error}.") from None


def _ids(wanted: Wanted) -> tuple[int, int]:
    """Return the wanted ids of owner and group; -1 for unset. Raises LookupError."""
    try:
        user = pwd.getpwnam(wanted.owner).pw_uid if wanted.owner else -1
    except KeyError:
        raise LookupError(f"no such user: {wanted.owner!r}") from None
    try:
        return user, grp.getgrnam(wanted.group).gr_gid if wanted.group else -1
    except KeyError:
        raise LookupError(f"no such group: {wanted.group!r}") from None


def _settle(path: Path, mode: int, owner: tuple[int, int]) -> None:
    """Set owner and mode of the path itself: a link that someone puts in its place is not followed."""
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise Failed(f"{path} was replaced by a symlink.", fix="Check what else writes to that directory.")
        if owner != (-1, -1):
            os.chown(f"/proc/self/fd/{handle}", *owner)
        Path(f"/proc/self/fd/{handle}").chmod(mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def _remove(found: FileState, *, deep: bool) -> None:
    if found.kind == "directory" and deep:
        shutil.rmtree(found.path)
    elif found.kind == "directory":
        found.path.rmdir()
    else:
        found.path.unlink()


def _names(found: os.stat_result) -> tuple[str, str]:
    """Return the names of user and group; the number if there is no name."""
    user, group = str(found.st_uid), str(found.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(found.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(found.st_gid).gr_name
    return user, group

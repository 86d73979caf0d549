"""Copying a folder that a container can write to, without trusting any name in it.

Every folder and file is opened from its parent and never through a link, and only plain files are copied. Limits apply, because
the container decides how much there is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.errors import SparkwrightError

#: limits: entries of a tree, nested folders, seconds in total
MOST_ENTRIES, MOST_DEPTH, MOST_S = 200_000, 32, 300.0
CHUNK_BYTES = 1 << 20
#: any user of the container can use the copy; its parent folders keep other users of the host out
OPEN_FILE, OPEN_FOLDER, PROGRAM = 0o666, 0o777, 0o111
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unfit(SparkwrightError):
    """A tree that is too large, too deep or too slow to be copied."""


@dataclass
class Copied:
    """The result of a copy."""

    files: int = 0
    size_bytes: int = 0
    #: files and folders that this user may not read
    unreadable: int = 0
    #: SHA-256 over the paths, kinds and contents of all files
    digest: str = ""
    _rows: list[str] = field(default_factory=list)


@dataclass
class _Job:
    """One copy while it runs."""

    source: int
    target: int
    room_bytes: int
    done: Copied = field(default_factory=Copied)
    entries: int = 0
    deadline_s: float = field(default_factory=lambda: time.monotonic() + MOST_S)


def copy(source: Path, target: Path, room_bytes: int) -> Copied:
    """Copy the plain files of a folder. Links, devices, sockets and pipes are left out.

    Args:
        source: The folder; its contents may change meanwhile.
        target: A new folder, created here. Only this user has access to its parent.
        room_bytes: The most bytes that the copy may take.

    Returns:
        The copied files. A file that changed while it was read is left out.

    Raises:
        Unfit: The tree is larger, deeper or slower than allowed.
        OSError: The target cannot be written, or the source is not a folder.
    """
    target.mkdir()
    with _opened(os.open(source, _FOLDER)) as reading, _opened(os.open(target, _FOLDER)) as writing:
        os.fchmod(writing, OPEN_FOLDER)
        job = _Job(reading, writing, room_bytes)
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            waiting += _folder(job, waiting.pop())
    done = job.done
    done.digest = hashlib.sha256("\0".join(sorted(done._rows)).encode(errors="surrogateescape")).hexdigest()
    return done


def _folder(job: _Job, parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Copy the files of one folder and create its subfolders, which are returned."""
    below = []
    with contextlib.ExitStack() as stack:
        try:
            reading = stack.enter_context(_below(job.source, parts))
            names = stack.enter_context(os.scandir(reading))
        except OSError:
            job.done.unreadable += 1
            return []
        writing = stack.enter_context(_below(job.target, parts))
        for name in (dir_entry.name for dir_entry in names):
            _count(job, parts)
            kind = _kind(reading, name)
            if stat.S_ISDIR(kind):
                os.mkdir(name, dir_fd=writing)
                with _opened(os.open(name, _FOLDER, dir_fd=writing)) as made:
                    os.fchmod(made, OPEN_FOLDER)
                below.append((*parts, name))
            elif stat.S_ISREG(kind):
                _file(job, reading, writing, (*parts, name))
    return below


def _count(job: _Job, parts: tuple[str, ...]) -> None:
    job.entries += 1
    if job.entries > MOST_ENTRIES:
        raise Unfit(f"it holds more than {MOST_ENTRIES:,} files.")
    if len(parts) >= MOST_DEPTH:
        raise Unfit(f"its folders are nested more than {MOST_DEPTH} deep.")
    if time.monotonic() > job.deadline_s:
        raise Unfit(f"copying it took longer than {MOST_S:.0f} s.")


def _file(job: _Job, reading: int, writing: int, parts: tuple[str, ...]) -> None:
    """Copy one plain file with its modification time, which build tools compare."""
    try:
        source = os.open(parts[-1], _READ, dir_fd=reading)
    except OSError:
        job.done.unreadable += 1
        return
    with _opened(source):
        before = os.fstat(source)
        if not stat.S_ISREG(before.st_mode):
            return
        if job.done.size_bytes + before.st_size > job.room_bytes:
            raise Unfit("there is not enough room on the disk for a copy of it.")
        mode = OPEN_FILE | (PROGRAM if before.st_mode & PROGRAM else 0)
        with _opened(os.open(parts[-1], _WRITE, 0o600, dir_fd=writing)) as target:
            hashed = _content(job, source, target, before.st_size)
            after = os.fstat(source)
            same = (before.st_size, before.st_mtime_ns, before.st_ctime_ns)
            if same != (after.st_size, after.st_mtime_ns, after.st_ctime_ns):
                os.unlink(parts[-1], dir_fd=writing)
                return
            os.fchmod(target, mode)
            os.utime(target, ns=(before.st_mtime_ns, before.st_mtime_ns))
    job.done.files += 1
    job.done.size_bytes += before.st_size
    job.done._rows.append(f"{hashed} {mode:o} {before.st_mtime_ns} {'/'.join(parts)}")


def _content(job: _Job, source: int, target: int, size_bytes: int) -> str:
    """Copy at most size_bytes and return their SHA-256. The pages are dropped from the cache: memory is shared with the GPU."""
    hasher, left = hashlib.sha256(), size_bytes
    while left and (chunk := os.read(source, min(CHUNK_BYTES, left))):
        hasher.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
        left -= len(chunk)
        if time.monotonic() > job.deadline_s:
            raise Unfit(f"copying it took longer than {MOST_S:.0f} s.")
    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
    return hasher.hexdigest()


@contextlib.contextmanager
def _below(top: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Yield a folder below an open one, opened name by name."""
    at = os.dup(top)
    try:
        for name in parts:
            below = os.open(name, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _kind(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return 0


@contextlib.contextmanager
def _opened(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)

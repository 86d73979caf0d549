"""Folders written by a container: copied without trusting the names in them, and removed or read even if root owns them.

A copy opens every folder and file relative to its parent, never through a link, and only takes regular files. Limits apply,
because the container controls the amount.

Only root may change root's files, and sparkwright does not need root on the host. A temporary container does the work: from an
empty image, with the host's own programs and libraries mounted read-only, one folder to work on, no network, and two
capabilities. No program of a served image runs, and nothing else on the host is reachable (docs/decisions/0035).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright import shell
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import container_labels, lifecycle
from sparkwright.host.module import Context
from sparkwright.host.records.own_folders import SHARE
from sparkwright.trust import private

#: limits: entries of a tree, nested folders, seconds in total
MOST_ENTRIES, MOST_DEPTH, MOST_S = 200_000, 32, 300.0
CHUNK_BYTES = 1 << 20
#: modes of a copy, which any user in the container can use; its parent folders keep other users of the host out
OPEN_FILE, OPEN_FOLDER, PROGRAM = 0o666, 0o777, 0o111
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unfit(SparkwrightError):
    """A tree that is too large, too deep or too slow to copy."""


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
    """A copy in progress."""

    source: int
    target: int
    room_bytes: int
    done: Copied = field(default_factory=Copied)
    entries: int = 0
    deadline_s: float = field(default_factory=lambda: time.monotonic() + MOST_S)


def copy(source: Path, target: Path, room_bytes: int) -> Copied:
    """Copy the regular files of a folder. Links, devices, sockets and pipes are left out.

    Args:
        source: The folder. Its contents may change during the copy.
        target: A new folder, created here. Only this user has access to its parent.
        room_bytes: The maximum size of the copy.

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
    """Copy a regular file with its modification time, which build tools compare."""
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
    """Copy at most size_bytes and return their SHA-256. Drops the pages from the cache, which shares memory with the GPU."""
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
    """Yield a folder below an open one, opened one path component at a time."""
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


WAIT_S = 120
#: folder in the user's home with files and folders to remove; no container mounts anything below it
TRASH = f"{SHARE}/trash"
#: the folder's path in the temporary container
SEEN_AT = "/work"
#: mounts needed to run a program of the host
_PROGRAMS = ("/usr", "/bin", "/lib", "/lib64")


def discard(context: Context, path: Path) -> None:
    """Move a file or folder to the trash, out of reach of every container, without removing it yet.

    Raises:
        OSError: It cannot be moved, or does not exist.
    """
    trash = private.folder(context.machine.home / TRASH) / os.urandom(8).hex()
    private.folder(trash)
    path.rename(trash / path.name)


def empty_trash(context: Context) -> None:
    """Remove everything in the trash, whoever owns it.

    Raises:
        Failed: Something cannot be removed; the fix is a command for root.
    """
    trash = context.machine.home / TRASH
    if trash.is_symlink() or not trash.is_dir():
        return
    for path in sorted(trash.iterdir()):
        with contextlib.suppress(Failed):  # rm may print a million errors
            context.machine.run(("rm", "-rf", "--", str(path)), timeout_s=WAIT_S)  # any depth, and no link is followed
        if path.exists():
            as_root(context, path, ("rm", "-rf", "--"), f"{SEEN_AT}/{path.name}", above=True)
        if path.exists():
            fix = f"On the host: `{shell.join(('sudo', 'rm', '-rf', path))}`."
            raise Failed(f"{path} holds files of root.", fix=fix)


def try_to_empty_trash(context: Context) -> None:
    """Remove everything in the trash; a note reports what cannot be removed."""
    try:
        empty_trash(context)
    except (OSError, SparkwrightError) as error:
        context.note(f"the trash is not emptied: {error}")


def open_for_reading(context: Context, folder: Path) -> None:
    """Make a folder written by a container readable for everyone. Its parents still restrict access."""
    as_root(context, folder, ("chmod", "-R", "a+rX", "--"), SEEN_AT)


def as_root(context: Context, path: Path, program: Sequence[str], argument: str, *, above: bool = False) -> None:
    """Run one of the host's programs on a folder, as root in a temporary container. A failure is noted, not raised.

    Args:
        context: The run's context.
        path: The folder.
        program: The program's name and its options.
        argument: The program's last argument.
        above: Whether the program needs the parent of `path`, as `rm` does. The parent must hold nothing else.
    """
    from docker.errors import APIError

    found = shutil.which(program[0], path="/usr/bin:/bin")
    if found is None:
        context.note(f"the host has no program {program[0]} in /usr/bin or /bin.")
        return
    api: Any = context.docker().api
    image = made = ""
    try:
        image = _empty_image(api)
        body = _body(image, [found, *program[1:]], argument, path.parent if above else path)
        made = lifecycle.create(context, body, container_labels.HELPER)
        lifecycle.start(context, made)
        api.wait(made, timeout=WAIT_S)
    except (APIError, OSError) as error:
        context.note(f"no container could run {program[0]} on {path}: {getattr(error, 'explanation', '') or error}")
    finally:
        if made:
            lifecycle.discard(context, made)
        if image:
            api.remove_image(image, force=True)


def _body(image: str, entrypoint: list[str], argument: str, folder: Path) -> dict[str, Any]:
    """Return the request to create the temporary container."""
    mounts: list[dict[str, Any]] = [{"Type": "bind", "Source": str(folder), "Target": SEEN_AT}]
    mounts += [
        {"Type": "bind", "Source": program, "Target": program, "ReadOnly": True}
        for program in _PROGRAMS
        if Path(program).is_dir()
    ]
    rights = {
        "NetworkMode": "none",
        "UsernsMode": "host",  # its root must be the host's root, even if containers have user namespaces
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges", "label=disable"],
    }
    host = {"Mounts": mounts, **rights}
    return {"Image": image, "Entrypoint": entrypoint, "Cmd": [argument], "User": "0:0", "Env": [], "HostConfig": host}


def _empty_image(api: Any) -> str:
    """Return the Id of an image without files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w"):
        pass
    name = f"sparkwright-empty-{os.urandom(6).hex()}"
    api.import_image_from_data(raw.getvalue(), repository=name, tag="latest")
    return str(api.inspect_image(f"{name}:latest")["Id"])

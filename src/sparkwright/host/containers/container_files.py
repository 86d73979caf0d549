"""Copy, read and remove folders that a container has written, without trusting the names in them, even if root owns them.

Copying opens every folder and file relative to its parent, never through a link, and includes only regular files. The size of
a copy is limited, because the container controls the amount of data.

Only root may change root's files, but sparkwright does not need root on the host: a temporary container does the work. It has an
empty image, the host's programs and libraries mounted read-only, one folder to work on, no network, and two capabilities. No
program of a served image runs, and nothing else on the host is reachable (docs/decisions/0035).
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
from sparkwright.host.containers import lifecycle, ownership
from sparkwright.host.module import Context
from sparkwright.host.records.own_folders import SHARE_FOLDER
from sparkwright.trust import private

#: maximum number of files and folders in a tree
MAX_ENTRIES = 200_000
#: maximum nesting of folders, and duration of a copy
MAX_DEPTH, MAX_COPY_S = 32, 300.0
CHUNK_BYTES = 1 << 20
#: file modes in a copy: any user in the container may use it; its parent folders keep other users of the host out
OPEN_FILE_MODE, OPEN_FOLDER_MODE, EXECUTE_BITS = 0o666, 0o777, 0o111
HELPER_TIMEOUT_S = 120
#: folder below the user's home for files and folders to be removed; no container mounts anything below it
TRASH_FOLDER = f"{SHARE_FOLDER}/trash"
#: the work folder's path in the temporary container
MOUNT_POINT = "/work"
#: folders to mount so that the host's programs can run
_PROGRAM_FOLDERS = ("/usr", "/bin", "/lib", "/lib64")
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CopyLimitExceeded(SparkwrightError):
    """The tree is too large, too deep or too slow to copy."""


@dataclass
class CopyResult:
    """The number, size and digest of the copied files."""

    file_count: int = 0
    size_bytes: int = 0
    #: files and folders that this user may not read
    unreadable_count: int = 0
    #: SHA-256 over the paths, modes, modification times and contents of all files
    digest: str = ""
    _rows: list[str] = field(default_factory=list)


@dataclass
class _CopyJob:
    """A copy in progress."""

    #: file descriptors of the folders
    source_fd: int
    target_fd: int
    max_bytes: int
    result: CopyResult = field(default_factory=CopyResult)
    entry_count: int = 0
    deadline_s: float = field(default_factory=lambda: time.monotonic() + MAX_COPY_S)

    def check_deadline(self) -> None:
        if time.monotonic() > self.deadline_s:
            raise CopyLimitExceeded(f"copying it took longer than {MAX_COPY_S:.0f} s.")


def copy(source: Path, target: Path, max_bytes: int) -> CopyResult:
    """Copy the regular files of a folder. Links, devices, sockets and pipes are left out.

    Args:
        source: The folder. Its contents may change during the copy.
        target: A new folder, created here. Only this user has access to its parent.
        max_bytes: The maximum size of the copy.

    Returns:
        The copied files. A file that changed while it was read is left out.

    Raises:
        CopyLimitExceeded: The tree is larger, deeper or slower than allowed.
        OSError: The target cannot be written, or the source is not a folder.
    """
    target.mkdir()
    with (
        _closing_handle(os.open(source, _FOLDER_FLAGS)) as source_fd,
        _closing_handle(os.open(target, _FOLDER_FLAGS)) as target_fd,
    ):
        os.fchmod(target_fd, OPEN_FOLDER_MODE)
        job = _CopyJob(source_fd, target_fd, max_bytes)
        pending: list[tuple[str, ...]] = [()]
        while pending:
            pending += _copy_folder(job, pending.pop())
    result = job.result
    result.digest = hashlib.sha256("\0".join(sorted(result._rows)).encode(errors="surrogateescape")).hexdigest()
    return result


def _copy_folder(job: _CopyJob, parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Copy the files of one folder, and create and return its subfolders."""
    subfolders = []
    with contextlib.ExitStack() as stack:
        try:
            source_folder_fd = stack.enter_context(_open_below(job.source_fd, parts))
            dir_entries = stack.enter_context(os.scandir(source_folder_fd))
        except OSError:
            job.result.unreadable_count += 1
            return []
        target_folder_fd = stack.enter_context(_open_below(job.target_fd, parts))
        for name in (dir_entry.name for dir_entry in dir_entries):
            _check_limits(job, parts)
            mode = _file_mode(source_folder_fd, name)
            if stat.S_ISDIR(mode):
                os.mkdir(name, dir_fd=target_folder_fd)
                with _closing_handle(os.open(name, _FOLDER_FLAGS, dir_fd=target_folder_fd)) as subfolder:
                    os.fchmod(subfolder, OPEN_FOLDER_MODE)
                subfolders.append((*parts, name))
            elif stat.S_ISREG(mode):
                _copy_file(job, source_folder_fd, target_folder_fd, (*parts, name))
    return subfolders


def _check_limits(job: _CopyJob, parts: tuple[str, ...]) -> None:
    job.entry_count += 1
    if job.entry_count > MAX_ENTRIES:
        raise CopyLimitExceeded(f"it has more than {MAX_ENTRIES:,} files.")
    if len(parts) >= MAX_DEPTH:
        raise CopyLimitExceeded(f"its folders are nested more than {MAX_DEPTH} deep.")
    job.check_deadline()


def _copy_file(job: _CopyJob, source_folder_fd: int, target_folder_fd: int, parts: tuple[str, ...]) -> None:
    """Copy a regular file with its modification time, which build tools compare."""
    try:
        source_fd = os.open(parts[-1], _READ_FLAGS, dir_fd=source_folder_fd)
    except OSError:
        job.result.unreadable_count += 1
        return
    with _closing_handle(source_fd):
        initial_status = os.fstat(source_fd)
        if not stat.S_ISREG(initial_status.st_mode):
            return
        if job.result.size_bytes + initial_status.st_size > job.max_bytes:
            raise CopyLimitExceeded("there is not enough disk space for a copy of it.")
        mode = OPEN_FILE_MODE | (EXECUTE_BITS if initial_status.st_mode & EXECUTE_BITS else 0)
        with _closing_handle(os.open(parts[-1], _WRITE_FLAGS, 0o600, dir_fd=target_folder_fd)) as target_fd:
            digest = _copy_content(job, source_fd, target_fd, initial_status.st_size)
            final_status = os.fstat(source_fd)
            stamp = (initial_status.st_size, initial_status.st_mtime_ns, initial_status.st_ctime_ns)
            if stamp != (final_status.st_size, final_status.st_mtime_ns, final_status.st_ctime_ns):
                os.unlink(parts[-1], dir_fd=target_folder_fd)
                return
            os.fchmod(target_fd, mode)
            os.utime(target_fd, ns=(initial_status.st_mtime_ns, initial_status.st_mtime_ns))
    job.result.file_count += 1
    job.result.size_bytes += initial_status.st_size
    job.result._rows.append(f"{digest} {mode:o} {initial_status.st_mtime_ns} {'/'.join(parts)}")


def _copy_content(job: _CopyJob, source_fd: int, target_fd: int, size_bytes: int) -> str:
    """Copy at most size_bytes and return their SHA-256. Drops the pages from the cache, which shares memory with the GPU."""
    hasher, remaining = hashlib.sha256(), size_bytes
    while remaining and (chunk := os.read(source_fd, min(CHUNK_BYTES, remaining))):
        hasher.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target_fd, view) :]
        remaining -= len(chunk)
        job.check_deadline()
    os.posix_fadvise(source_fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return hasher.hexdigest()


@contextlib.contextmanager
def _open_below(top_fd: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Yield a folder below an open one, opened one path component at a time."""
    fd = os.dup(top_fd)
    try:
        for name in parts:
            child_fd = os.open(name, _FOLDER_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = child_fd
        yield fd
    finally:
        os.close(fd)


def _file_mode(folder_fd: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
    except OSError:
        return 0


@contextlib.contextmanager
def _closing_handle(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def discard(context: Context, path: Path) -> None:
    """Move a file or folder to the trash, out of reach of every container, without removing it yet.

    Raises:
        OSError: It cannot be moved, or does not exist.
    """
    trash = private.create_folder(context.machine.home / TRASH_FOLDER) / os.urandom(8).hex()
    private.create_folder(trash)
    path.rename(trash / path.name)


def empty_trash(context: Context) -> None:
    """Remove everything in the trash, whoever owns it.

    Raises:
        Failed: Something cannot be removed; the fix is a command for root.
    """
    trash = context.machine.home / TRASH_FOLDER
    if trash.is_symlink() or not trash.is_dir():
        return
    for path in sorted(trash.iterdir()):
        # rm removes trees of any depth and follows no links; it raises Failed if it takes too long or prints too many errors
        with contextlib.suppress(Failed):
            context.machine.run(("rm", "-rf", "--", str(path)), timeout_s=HELPER_TIMEOUT_S)
        if path.exists():
            run_as_root(context, path, ("rm", "-rf", "--"), f"{MOUNT_POINT}/{path.name}", mount_parent=True)
        if path.exists():
            fix = f"On the host: `{shell.join(('sudo', 'rm', '-rf', path))}`."
            raise Failed(f"{path} contains files owned by root.", fix=fix)


def try_to_empty_trash(context: Context) -> None:
    """Remove everything in the trash; a note reports what cannot be removed."""
    try:
        empty_trash(context)
    except (OSError, SparkwrightError) as error:
        context.note(f"the trash could not be emptied: {error}")


def make_readable(context: Context, folder: Path) -> None:
    """Make a folder written by a container readable for all users; its parent folders still restrict access."""
    run_as_root(context, folder, ("chmod", "-R", "a+rX", "--"), MOUNT_POINT)


def run_as_root(
    context: Context, path: Path, program: Sequence[str], argument: str, *, mount_parent: bool = False
) -> None:
    """Run one of the host's programs on a folder, as root in a temporary container. A failure is noted, not raised.

    Args:
        path: The folder.
        program: The program's name and its options.
        argument: The program's last argument.
        mount_parent: Whether the program needs the parent of `path`, as `rm` does. The parent must contain nothing else.
    """
    from docker.errors import APIError

    executable = shutil.which(program[0], path="/usr/bin:/bin")
    if executable is None:
        context.note(f"{program[0]} is not installed in /usr/bin or /bin.")
        return
    api: Any = context.docker().api
    image = container_id = ""
    try:
        image = _import_empty_image(api)
        body = _helper_config(image, [executable, *program[1:]], argument, path.parent if mount_parent else path)
        container_id = lifecycle.create(context, body, ownership.HELPER)
        lifecycle.start(context, container_id)
        api.wait(container_id, timeout=HELPER_TIMEOUT_S)
    except (APIError, OSError) as error:
        context.note(f"no container could run {program[0]} on {path}: {getattr(error, 'explanation', '') or error}")
    finally:
        if container_id:
            lifecycle.force_remove(context, container_id)
        if image:
            api.remove_image(image, force=True)


def _helper_config(image: str, entrypoint: list[str], argument: str, folder: Path) -> dict[str, Any]:
    """Return the request to create the temporary container."""
    mounts: list[dict[str, Any]] = [{"Type": "bind", "Source": str(folder), "Target": MOUNT_POINT}]
    mounts += [
        {"Type": "bind", "Source": program, "Target": program, "ReadOnly": True}
        for program in _PROGRAM_FOLDERS
        if Path(program).is_dir()
    ]
    restrictions = {
        "NetworkMode": "none",
        "UsernsMode": "host",  # its root must be the host's root, even if Docker remaps the users of containers
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges", "label=disable"],
    }
    command = {"Entrypoint": entrypoint, "Cmd": [argument], "User": "0:0", "Env": []}
    return {"Image": image, **command, "HostConfig": {"Mounts": mounts, **restrictions}}


def _import_empty_image(api: Any) -> str:
    """Import an image without files, and return its Id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w"):
        pass
    name = f"sparkwright-empty-{os.urandom(6).hex()}"
    api.import_image_from_data(archive.getvalue(), repository=name, tag="latest")
    return str(api.inspect_image(f"{name}:latest")["Id"])

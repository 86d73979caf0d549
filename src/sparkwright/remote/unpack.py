"""Unpacks a runtime on a host without sparkwright: the host's Python reads this file and then the archive from stdin.

    python3 -I -c '...' FOLDER NAME < this file and the archive         FOLDER: below the home. NAME: the runtime's hash

A runtime is renamed to NAME only once it is complete, compiled and synced to disk. A lock prevents conflicts between two laptops.
Leftovers of earlier attempts, and old runtimes that no process or timer uses, are removed. The last line of the output is an
event: `shipped`, or `not_shipped` with the reason.
"""

from __future__ import annotations

import compileall
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

#: number of unused runtimes to keep: the laptops of a lab may have different versions
MAX_UNUSED_RUNTIMES = 3
DAMAGE_ERRORS = (EOFError, LookupError, TypeError, ValueError, AttributeError, tarfile.TarError, zlib.error)
#: exit code of boot.py if the runtime started
STARTED_EXIT_CODE = 76


def main(folder: str, name: str) -> int:
    """Read an archive from standard input and install it."""
    os.umask(0o077)
    target = Path.home() / folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _install(sys.stdin.buffer, target)
    except DAMAGE_ERRORS as error:
        return _report("not_shipped", why=f"the archive did not arrive complete ({type(error).__name__}: {error})")
    except OSError as error:
        return _report("not_shipped", why=_describe_error(error, target.parent))
    return _report("shipped")


def _install(archive: IO[bytes], target: Path) -> None:
    with _hold_runtimes_lock(target.parent):
        staging = Path(tempfile.mkdtemp(prefix=".new.", dir=target.parent))
        lock = (staging / "lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        _unpack(archive, staging)
        (staging / "python").write_text(sys.executable)
        compileall.compile_dir(staging / "lib", quiet=2, stripdir=str(staging), prependdir=str(target))
        _sync(staging)
        with _hold_runtimes_lock(target.parent):
            if not (_is_complete(target) and _can_start(target)):
                fcntl.flock(lock, fcntl.LOCK_SH)  # so that a process that is starting the runtime does not have to wait
                _replace(target, staging)
            _prune(target)
    finally:
        lock.close()
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _hold_runtimes_lock(parent: Path) -> Iterator[None]:
    """Hold the lock on the set of runtimes."""
    with (parent / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpack(archive: IO[bytes], staging: Path) -> None:
    """Unpack the archive, verifying every file against the manifest, which comes first."""
    with tarfile.open(fileobj=archive, mode="r|gz") as tar:
        members = iter(tar)
        manifest = _read(tar, next(members, None))
        (staging / "manifest.json").write_bytes(manifest)
        missing_files = {name: tuple(size_and_hash) for name, size_and_hash in json.loads(manifest).items()}
        needed_bytes, free_bytes = sum(size for size, _ in missing_files.values()), shutil.disk_usage(staging).free
        if free_bytes < needed_bytes:
            raise OSError(
                errno.ENOSPC, f"not enough space: needs {needed_bytes / 1e6:.0f} MB, {free_bytes / 1e6:.0f} MB free"
            )
        for member in members:
            data = _read(tar, member)
            if missing_files.pop(member.name) != (len(data), hashlib.sha256(data).hexdigest()):
                raise ValueError(f"{member.name} is damaged")
            path = staging / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if missing_files:
        raise EOFError(f"{len(missing_files)} files are missing")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> bytes:
    file = tar.extractfile(member) if member else None
    if file is None:
        raise EOFError("not a file")
    return file.read()


def _sync(folder: Path) -> None:
    """Sync the folder to disk before it is renamed, so that its files can't be empty after a power cut."""
    if subprocess.run(["sync", "-f", str(folder)], stdin=subprocess.DEVNULL, check=False).returncode:
        os.sync()


def _is_complete(target: Path) -> bool:
    """Return True if this runtime already exists with all files intact, because another laptop has just uploaded it."""
    try:
        manifest = json.loads((target / "manifest.json").read_bytes())
        files = {name: (target / name).read_bytes() for name in manifest}
        is_intact = all([len(data), hashlib.sha256(data).hexdigest()] == manifest[name] for name, data in files.items())
        return is_intact and (target / "lock").exists()
    except (OSError, *DAMAGE_ERRORS):
        return False


def _can_start(target: Path) -> bool:
    """Return True if the runtime starts. Its compiled files are not in the manifest: they may be for another Python."""
    argv = ["-IS", str(target / "lib/sparkwright/runner/boot.py"), str(target / "tag"), "engine"]
    try:
        python = (target / "python").read_text()
        completed = subprocess.run([python, *argv], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except (OSError, ValueError):
        return False
    return completed.returncode == STARTED_EXIT_CODE


def _replace(target: Path, staging: Path) -> None:
    """Move the new runtime into place. Timers that start a runtime from this path then start the new one."""
    if target.exists():
        if (target / "in-use").exists():
            (staging / "in-use").touch()
        _remove(target)
    staging.rename(target)
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _prune(current: Path) -> None:
    folders = [path for path in current.parent.iterdir() if path.is_dir() and path != current]
    leftovers = [path for path in folders if path.name.startswith((".new.", ".old."))]
    other_runtimes = [path for path in folders if not path.name.startswith(".")]
    other_runtimes.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in [
        *leftovers,
        *(runtime for runtime in other_runtimes[MAX_UNUSED_RUNTIMES:] if not (runtime / "in-use").exists()),
    ]:
        with contextlib.suppress(OSError), contextlib.ExitStack() as locks:  # BlockingIOError if it is in use
            if (path / "lock").exists():
                fcntl.flock(locks.enter_context((path / "lock").open("rb+")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)


def _remove(path: Path) -> None:
    """Rename a runtime and then remove it, so that no runner can start from a half-removed one."""
    trash = Path(tempfile.mkdtemp(prefix=".old.", dir=path.parent))
    path.replace(trash / path.name)
    shutil.rmtree(trash, ignore_errors=True)


def _describe_error(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing_folder = folder if folder.exists() else Path.home()
        return f"{folder}: {error.strerror} ({shutil.disk_usage(existing_folder).free / 1e6:.0f} MB free)"
    return f"{error.filename or folder}: {error.strerror or error}"


def _report(event: str, **fields: str) -> int:
    print("\n" + json.dumps({"event": event, **fields}), flush=True)
    return 0 if event == "shipped" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[2], sys.argv[3]))

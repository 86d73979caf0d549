"""The root process of `become`, which runs the modules that are requested on standard input."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sparkwright.errors import Exit, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.modules import registry
from sparkwright.protocol import signature
from sparkwright.protocol.result import Result, check_result
from sparkwright.runner import become
from sparkwright.secret import Secret

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def serve() -> None:
    """Answer requests until standard input ends."""
    requests, answers = _open_streams()

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    os.umask(os.umask(0o022) | 0o022)  # no other user may write to root's files
    write(become.READY_LINE)
    first_message = _read_first_message(requests)
    caller_ids = _sudo_caller_ids()
    os.environ.clear()
    os.environ.update({**first_message["env"], "LC_ALL": "C"})
    machine = Machine.from_environment()
    secrets = {name: Secret(value) for name, value in first_message["secrets"].items()}
    state = StateFolder(Path(first_message["state"]), str(first_message.get("server", "")))
    for line in requests:
        request = json.loads(line)
        context = RunContext(
            machine=machine,
            state=state,
            run_id=first_message["run_id"],
            emit=lambda event: write(json.dumps(event, default=str)),
            check=request["check"],
            facts=request["facts"],
            secrets=secrets,
            task=request["task"],
        )
        result = _run_module(request, context)
        if caller_ids is not None:
            restore_owner(state.path, *caller_ids)
        write(json.dumps(dataclasses.asdict(result), default=str))


def _open_streams() -> tuple[IO[bytes], IO[str]]:
    """Return the streams for requests and answers, whose descriptors child processes don't inherit."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    return requests, answers


def _sudo_caller_ids() -> tuple[int, int] | None:
    """Return the user and group id of the user who called sudo, or None if root logged in."""
    try:
        return int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
    except (KeyError, ValueError):
        return None


def _read_first_message(requests: IO[bytes]) -> dict[str, Any]:
    """Return the first message, skipping the line with the password, which remains if sudo did not need it."""
    for line in requests:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and "run_id" in message:
            return message
    sys.exit(0)


def _run_module(request: dict[str, Any], context: RunContext) -> Result:
    try:
        module_class = registry.load(request["module"])
        args = signature.build_args(module_class.Args, request["args"], module=request["module"])
        return check_result(module_class().run(args, context), request["module"])
    except SparkwrightError as error:
        code = None if error.exit is Exit.FAILED else error.exit
        return Result(failed=True, msg=error.message, fix=error.fix, exit=code)
    except BaseException as error:  # even a library's sys.exit must not end this process
        return Result(failed=True, msg=f"{request['module']}: {type(error).__name__}: {error}")


# Changing the owner of files that root wrote into a user's folder.
#
# The user may rename, link and replace files there at any moment, so paths cannot be trusted: folders are opened without
# following links, and the owner is changed through an open file, never by name.


def restore_owner(folder: Path, uid: int, gid: int) -> None:
    """Change the owner of root's files and folders below a user's folder to that user.

    Left unchanged: links and their targets, files with a second hard link (which may be the system's), files of owners other than
    root, other file systems, and everything if the folder does not belong to the user.
    """
    with contextlib.suppress(OSError), _open_descriptor(folder) as folder_fd:
        status = os.fstat(folder_fd)
        if status.st_uid == uid != 0:
            _restore_owner_below(folder_fd, status.st_dev, uid, gid)


def _restore_owner_below(folder_fd: int, device: int, uid: int, gid: int) -> None:
    for name in os.listdir(folder_fd):
        # OSError: the file was removed or replaced in the meantime
        with contextlib.suppress(OSError), _open_descriptor(name, _ENTRY_FLAGS, folder_fd) as entry_fd:
            status = os.fstat(entry_fd)
            if status.st_dev != device:
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            if status.st_uid == 0 and (is_folder or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)):
                os.chown(f"/proc/self/fd/{entry_fd}", uid, gid)
            if is_folder:
                with _open_descriptor(f"/proc/self/fd/{entry_fd}", _FOLDER_FLAGS & ~os.O_NOFOLLOW) as inner_fd:
                    _restore_owner_below(inner_fd, device, uid, gid)


@contextlib.contextmanager
def _open_descriptor(path: Path | str, flags: int = _FOLDER_FLAGS, folder_fd: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=folder_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

"""The root side of `become`, which runs modules one by one as requested on standard input."""

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
from sparkwright.protocol.result import Result, sound
from sparkwright.runner import become
from sparkwright.secret import Secret


def serve() -> None:
    """Answer requests until standard input ends."""
    requests, answers = _pipes()

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    os.umask(os.umask(0o022) | 0o022)  # no other user may write to root's files
    write(become.READY)
    start = _begin(requests)
    owner = _caller()
    os.environ.clear()
    os.environ.update({**start["env"], "LC_ALL": "C"})
    machine = Machine.here()
    secrets = {name: Secret(value) for name, value in start["secrets"].items()}
    state = StateFolder(Path(start["state"]), str(start.get("server", "")))
    for line in requests:
        request = json.loads(line)
        context = RunContext(
            machine=machine,
            state=state,
            run_id=start["run_id"],
            emit=lambda event: write(json.dumps(event, default=str)),
            check=request["check"],
            facts=request["facts"],
            secrets=secrets,
            task=request["task"],
        )
        result = _run(request, context)
        if owner is not None:
            give_back(state.path, *owner)
        write(json.dumps(dataclasses.asdict(result), default=str))


def _pipes() -> tuple[IO[bytes], IO[str]]:
    """Return the streams of requests and answers, with descriptors that the modules' programs don't inherit."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    return requests, answers


def _caller() -> tuple[int, int] | None:
    """Return the ids of the user who called sudo, or None if root logged in."""
    try:
        return int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
    except (KeyError, ValueError):
        return None


def _begin(requests: IO[bytes]) -> dict[str, Any]:
    """Return the first message. It may be preceded by the password's line if sudo did not need it."""
    for line in requests:
        try:
            start = json.loads(line)
        except ValueError:
            continue
        if isinstance(start, dict) and "run_id" in start:
            return start
    sys.exit(0)


def _run(request: dict[str, Any], context: RunContext) -> Result:
    try:
        kind = registry.load(request["module"])
        args = signature.build(kind.Args, request["args"], module=request["module"])
        return sound(kind().run(args, context), request["module"])
    except SparkwrightError as error:
        code = None if error.exit is Exit.FAILED else error.exit
        return Result(failed=True, msg=error.message, fix=error.fix, exit=code)
    except BaseException as error:  # as in play.py
        return Result(failed=True, msg=f"{request['module']}: {type(error).__name__}: {error}")


# The owner of files that root wrote into a user's folder.
#
# The user may rename, link and replace files there at any moment, so nothing is decided by a path: folders are opened without
# following links, and the owner is changed through an open file, never by name.

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_THING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def give_back(folder: Path, uid: int, gid: int) -> None:
    """Change the owner of root's files and folders below a user's folder to that user.

    Links and their targets, files with a second name, which may be the system's, files of other owners than root, and other file
    systems are left unchanged, and so is everything if the folder does not belong to the user.
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
        ):  # it may be gone or replaced by now
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

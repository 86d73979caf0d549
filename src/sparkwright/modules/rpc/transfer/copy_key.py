from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host.module import Context, StateModule
from sparkwright.host.state import write_atomically
from sparkwright.protocol.result import Change, arg
from sparkwright.trust import private
from sparkwright.visible import one_line

LIVES_S = 900
MARK = b" sparkwright-copy"
#: one key and nothing else: it comes from another host
KEY = re.compile(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{1,16384}={0,3}")
EXPIRY = re.compile(rb'expiry-time="(\d{12})"')


class CopyKey(StateModule["CopyKey.Args", bytes]):
    """For one transfer another host may log in here with a key made for it, and do nothing but hand over what it sends.

    The line in ~/.ssh/authorized_keys is restricted to one command, without terminal or forwarding, and no longer lets anybody
    in after 15 minutes, should it ever be left behind. Lines of earlier transfers that have expired are removed; those of other
    transfers under way, and everybody else's lines, stay as they are, byte for byte.

    Returns: nothing. Refuses a key or a command of more than one line. Fails when the file can't be written.
    """

    @dataclass(frozen=True)
    class Args:
        public_key: str = arg("the key, as ssh-ed25519 AAAA...")
        command: str = arg("what it may run", default="")
        state: Literal["present", "absent"] = arg("present or absent", default="present")

    def read(self, args: Args, context: Context) -> bytes:
        if not KEY.fullmatch(args.public_key):
            raise Refused(f"not a public key: '{one_line(args.public_key, at_most=80)}'.")
        if args.command != one_line(args.command):
            raise Refused(f"the command of a key must be one line: '{one_line(args.command, at_most=80)}'.")
        try:
            return _file(context).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise Failed(f"cannot read {_file(context)}: {error.strerror}.") from None

    def differences(self, args: Args, found: bytes) -> list[Change]:
        there = any(_is_of(line, args.public_key) for line in found.split(b"\n"))
        if there == (args.state == "present"):
            return []
        return [Change("key", "present" if there else None, None if there else args.command, "for one transfer")]

    def act(self, args: Args, found: bytes, changes: list[Change], context: Context) -> dict[str, Any]:
        path = _file(context)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with _alone(context):
                _replace(path.resolve(), _text(args, self.read(args, context)))  # another transfer may have changed it
        except OSError as error:
            raise Failed(f"cannot write {path}: {error.strerror}.") from None
        return {}


def lines_left(context: Context) -> int:
    """Return the number of transfer lines in ~/.ssh/authorized_keys, in use or left behind."""
    try:
        return sum(row.endswith(MARK) for row in _file(context).read_bytes().split(b"\n"))
    except OSError:
        return 0


def remove_lines(context: Context) -> None:
    """Remove every line of a transfer; all others stay as they are."""
    if lines_left(context):
        with _alone(context):
            path = _file(context).resolve()
            rows = path.read_bytes().split(b"\n")
            _replace(path, b"\n".join(row for row in rows if not row.endswith(MARK)))


def _text(args: CopyKey.Args, found: bytes) -> bytes:
    """Return the content that the file should have."""
    now = time.strftime("%Y%m%d%H%M").encode()
    rows = found.removesuffix(b"\n").split(b"\n") if found else []
    rows = [row for row in rows if not _is_of(row, args.public_key) and not _expired(row, now)]
    if args.state == "present":
        until = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + LIVES_S))
        quoted = args.command.replace('"', '\\"')
        rows.append(f'restrict,expiry-time="{until}",command="{quoted}" {args.public_key}'.encode() + MARK)
    return b"".join(row + b"\n" for row in rows)


def _is_of(row: bytes, public_key: str) -> bool:
    return row.endswith(f" {public_key}".encode() + MARK)


def _expired(row: bytes, now: bytes) -> bool:
    """Return True if a transfer left this line behind."""
    until = EXPIRY.search(row)
    return row.startswith(b"restrict") and row.endswith(MARK) and (until is None or until[1] < now)


@contextmanager
def _alone(context: Context) -> Iterator[None]:
    """Lock the file: of two transfers that start at once, each would overwrite what the other wrote."""
    with open(context.state.folder() / "authorized_keys.lock", "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, content: bytes) -> None:
    """Replace the file atomically, with its owner and mode."""
    was: os.stat_result | None = None
    with contextlib.suppress(FileNotFoundError):
        was = path.stat()
    mode = stat.S_IMODE(was.st_mode) if was else private.FILE
    write_atomically(path, content, mode=mode, owner=(was.st_uid, was.st_gid) if was else None)


def _file(context: Context) -> Path:
    return context.machine.home / ".ssh/authorized_keys"

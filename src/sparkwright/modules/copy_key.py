"""The `copy_key` module."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.state import write_atomically
from sparkwright.modules.base import Change, Context, StateModule, arg

LIVES_S = 900


class CopyKey(StateModule["CopyKey.Args", str]):
    """For one transfer another host may log in here with a key made for it, and do nothing but hand over what it sends.

    The line in ~/.ssh/authorized_keys is restricted to one command, without terminal or forwarding, and no longer lets anybody
    in after 15 minutes, should it ever be left behind. Lines of earlier transfers that were are removed.

    Returns: nothing. Fails when the file can't be written.
    """

    @dataclass(frozen=True)
    class Args:
        public_key: str = arg("the key, as ssh-ed25519 AAAA...")
        command: str = arg("what it may run", default="")
        state: str = arg("present or absent", default="present")

    def read(self, args: Args, context: Context) -> str:
        try:
            return _file(context).read_text()
        except FileNotFoundError:
            return ""

    def differences(self, args: Args, found: str) -> list[Change]:
        there = any(args.public_key in line for line in found.splitlines())
        if there == (args.state == "present"):
            return []
        return [Change("key", "present" if there else None, None if there else args.command, "for one transfer")]

    def act(self, args: Args, found: str, changes: list[Change], context: Context) -> dict[str, Any]:
        lines = [line for line in found.splitlines() if "sparkwright-copy" not in line]
        if args.state == "present":
            until = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + LIVES_S))
            quoted = args.command.replace('"', '\\"')
            lines.append(f'restrict,expiry-time="{until}",command="{quoted}" {args.public_key} sparkwright-copy')
        path = _file(context)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path.resolve(), "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
        except OSError as error:
            raise Failed(f"{path} can't be written: {error.strerror}.") from None
        return {}


def _file(context: Context) -> Path:
    return context.machine.home / ".ssh/authorized_keys"

"""The `file` module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.host import files
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg


class File(StateModule["File.Args", files.Standing]):
    """A file is there with this content, mode and owner, or is not there.

    Written beside and renamed: a reader sees the old or the new. Fails without permission (says `become`).
    """

    @dataclass(frozen=True)
    class Args:
        path: str = arg("where; ~ is the user's home")
        content: str | None = arg("the content; null: leave it unchanged", default=None)
        state: Literal["present", "absent"] = arg("present or absent", default="present")
        mode: str = arg('permissions, as "0644"', default="")
        owner: str = arg("user that owns it", default="")
        group: str = arg("group that owns it", default="")

    def read(self, args: Args, context: Context) -> files.Standing:
        return files.Standing.at(context.machine.expand(args.path))

    def differences(self, args: Args, found: files.Standing) -> list[Change]:
        return files.differences(self._wanted(args), found)

    def describe(self, args: Args, found: files.Standing) -> dict[str, Any]:
        return {"path": str(found.path)}

    def act(self, args: Args, found: files.Standing, changes: list[Change], context: Context) -> dict[str, Any]:
        files.bring_about(self._wanted(args), found)
        return {}

    @staticmethod
    def _wanted(args: Args) -> files.Wanted:
        kind = "file" if args.state == "present" else "absent"
        return files.Wanted(kind, args.mode, args.owner, args.group, args.content)

"""Modules about files and folders."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host import files
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg


class File(StateModule["File.Args", files.FileState]):
    """A file or a folder is there, with this mode and owner; or nothing is there.

    A file is written beside and renamed: a reader sees the old or the new. A folder comes with the ones above it, and goes with
    all that it holds. Fails without permission (says `become`).
    """

    @dataclass(frozen=True)
    class Args:
        path: str = arg("where; ~ is the user's home")
        state: Literal["file", "directory", "absent"] = arg("file, directory or absent", default="file")
        content: str | None = arg("the content of a file; null: leave it unchanged", default=None)
        mode: str = arg('permissions, as "0644"', default="")
        owner: str = arg("user that owns it", default="")
        group: str = arg("group that owns it", default="")

    def read(self, args: Args, context: Context) -> files.FileState:
        if args.content is not None and args.state == "directory":
            raise Refused(f"{args.path}: a directory has no `content`.", fix="Leave it out, or say `state: file`.")
        return files.FileState.at(context.machine.expand(args.path))

    def differences(self, args: Args, found: files.FileState) -> list[Change]:
        return files.differences(self._wanted(args), found)

    def describe(self, args: Args, found: files.FileState) -> dict[str, Any]:
        return {"path": str(found.path)}

    def act(self, args: Args, found: files.FileState, changes: list[Change], context: Context) -> dict[str, Any]:
        files.bring_about(self._wanted(args), found)
        return {}

    @staticmethod
    def _wanted(args: Args) -> files.Wanted:
        return files.Wanted(args.state, args.mode, args.owner, args.group, args.content)


class Template(StateModule["Template.Args", files.FileState]):
    """A file is there with the content of a rendered template.

    `src` in a playbook names a file of templates/; what it renders to arrives here as content. `validate` is a command that
    gets the new file's path as its last word and must succeed before it replaces the file that is there.
    """

    @dataclass(frozen=True)
    class Args:
        content: str = arg("the rendered template (in a playbook: `src`)")
        dest: str = arg("where; ~ is the user's home")
        mode: str = arg('permissions, as "0644"', default="")
        owner: str = arg("user that owns it", default="")
        group: str = arg("group that owns it", default="")
        validate: list[str] = arg("a command that checks the new file, as words", default_factory=list)

    def read(self, args: Args, context: Context) -> files.FileState:
        return files.FileState.at(context.machine.expand(args.dest))

    def differences(self, args: Args, found: files.FileState) -> list[Change]:
        return files.differences(self._wanted(args), found)

    def describe(self, args: Args, found: files.FileState) -> dict[str, Any]:
        return {"path": str(found.path)}

    def act(self, args: Args, found: files.FileState, changes: list[Change], context: Context) -> dict[str, Any]:
        if args.validate:
            self._validate(args, context)
        files.bring_about(self._wanted(args), found)
        return {}

    @staticmethod
    def _wanted(args: Args) -> files.Wanted:
        return files.Wanted("file", args.mode, args.owner, args.group, args.content)

    @staticmethod
    def _validate(args: Args, context: Context) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".new") as file:
            file.write(args.content)
            file.flush()
            answer = context.machine.run([*args.validate, file.name])
        if not answer.ok:
            raise Failed(f"{args.validate[0]} refuses the new {args.dest}: {(answer.err or answer.out).strip()[-300:]}")

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.host import files
from sparkwright.host.containers import containers, replacement
from sparkwright.host.gateway import place
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.result import Change, Result, arg

FOLDER = ".local/share/sparkwright/run"
MODE = "0755"
#: the mark of sparkwright's own scripts; a script without it is left alone
WRITTEN = "Written by sparkwright"


class RunScript(StateModule["RunScript.Args", files.FileState]):
    """The docker run command of the server that was verified is on the host as a script, ~/.local/share/sparkwright/run/NAME.sh.

    `src` in a playbook names a file of templates/; what it renders to arrives here as content, and is kept with the last verified
    state. Without it the script is the one kept with the state of the container that is there; where none was kept, the file is
    removed: it would be another server's. So is the script of a server of another recipe that gave way to this one: one that
    sparkwright wrote, of no container and no verified server.

    Returns: path.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        content: str = arg("the rendered template (in a playbook: `src`)", default="")

    def read(self, args: Args, context: Context) -> files.FileState:
        return files.FileState.at(context.machine.home / FOLDER / f"{args.name}.sh")

    def differences(self, args: Args, found: files.FileState) -> list[Change]:
        return files.differences(_wanted(args.content), found)

    def describe(self, args: Args, found: files.FileState) -> dict[str, Any]:
        return {"path": str(found.path)}

    def run(self, args: Args, context: Context) -> Result:
        record = _record(args.name, context)
        kept = str(good_states.last(record).get("script") or "") if record else ""
        if not args.content:
            result = super().run(dataclasses.replace(args, content=kept), context)
        else:
            result = super().run(args, context)
            if record and kept != args.content and not context.check:
                record.write("verified", {**good_states.last(record), "script": args.content})
        if not (gone := _of_nobody(args.name, context)):
            return result
        for path in gone if not context.check else ():
            path.unlink(missing_ok=True)
        diff = [*result.diff, *(Change(f"script of {path.stem}", "file", "absent") for path in gone)]
        return dataclasses.replace(result, changed=True, diff=diff)

    def act(self, args: Args, found: files.FileState, changes: list[Change], context: Context) -> dict[str, Any]:
        files.bring_about(_wanted(args.content), found)
        return {}


def _wanted(text: str) -> files.Wanted:
    return files.Wanted("file", MODE, content=text) if text else files.Wanted("absent")


def _of_nobody(name: str, context: Context) -> list[Path]:
    """Return the scripts of servers that no longer exist, neither running nor verified last.

    In check mode this includes the script of the server that this one replaces.
    """
    leaving = replacement.name_of(found) if context.check and (found := replacement.current(context, name)) else name
    states = [place.state(context), *context.state.servers()]
    known = {str((good_states.last(state).get("spec") or {}).get("name")) for state in states} - {leaving} | {name}
    return [
        path
        for path in sorted((context.machine.home / FOLDER).glob("*.sh"))
        if path.stem not in known
        and WRITTEN in (files.FileState.at(path).content or "")
        and (path.stem == leaving or containers.inspect(context.docker(), path.stem) is None)
    ]


def _record(name: str, context: Context) -> StateFolder | None:
    """Return the state folder with the verified state of the current container, a server's or a gateway's; None if it is not
    verified."""
    here = containers.inspect(context.docker(), name)
    kept = (context.state, place.state(context)) if here else ()
    return next(
        (
            state_folder
            for state_folder in kept
            if here and good_states.last(state_folder).get("container_id") == here["Id"]
        ),
        None,
    )

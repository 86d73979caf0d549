from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from sparkwright.host import files
from sparkwright.host.containers import containers
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change, Result, arg

FOLDER = ".local/share/sparkwright/run"
MODE = "0755"


class RunScript(StateModule["RunScript.Args", files.Standing]):
    """The docker run command of the server that was verified is on the host as a script, ~/.local/share/sparkwright/run/NAME.sh.

    `src` in a playbook names a file of templates/; what it renders to arrives here as content, and is kept with the last verified
    state. Without it the script is the one kept with the state of the container that is there; where none was kept, the file is
    removed: it would be another server's.

    Returns: path.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        content: str = arg("the rendered template (in a playbook: `src`)", default="")

    def read(self, args: Args, context: Context) -> files.Standing:
        return files.Standing.at(context.machine.home / FOLDER / f"{args.name}.sh")

    def differences(self, args: Args, found: files.Standing) -> list[Change]:
        return files.differences(_wanted(args.content), found)

    def describe(self, args: Args, found: files.Standing) -> dict[str, Any]:
        return {"path": str(found.path)}

    def run(self, args: Args, context: Context) -> Result:
        kept = str(good_states.last(context.state).get("script") or "")
        if not args.content:
            content = kept if _verified(args.name, context) else ""
            return super().run(dataclasses.replace(args, content=content), context)
        result = super().run(args, context)
        if kept != args.content and not context.check and _verified(args.name, context):
            context.state.write("verified", {**good_states.last(context.state), "script": args.content})
        return result

    def act(self, args: Args, found: files.Standing, changes: list[Change], context: Context) -> dict[str, Any]:
        files.bring_about(_wanted(args.content), found)
        return {}


def _wanted(text: str) -> files.Wanted:
    return files.Wanted("file", MODE, content=text) if text else files.Wanted("absent")


def _verified(name: str, context: Context) -> bool:
    """Whether the container that is there is the one of the last verified state."""
    good = good_states.last(context.state)
    here = containers.inspect(context.docker(), name) if good else None
    return here is not None and bool(here["Id"] == good.get("container_id"))

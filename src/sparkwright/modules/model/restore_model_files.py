from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.host.containers import containers
from sparkwright.host.models import kept_files
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change
from sparkwright.visible import count


class RestoreModelFiles(StateModule["RestoreModelFiles.Args", str]):
    """The models' folders hold again what the verified server was started with, when another revision took its place.

    For a run that fails between fetching a revision and swapping the servers: the previous server runs on with the old weights in
    its memory, and were it to start again it must find them in its folder too.
    Where another container has the verified one's name already, of a run that was cut off, the files are that one's and stay.

    Returns: commit (of the files that have their places again; empty when nothing had been replaced).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def read(self, args: Args, context: Context) -> str:
        found = kept_files.replaced_folders(context)
        return next(iter(found.values())) if found and not _replaced(context) else ""

    def differences(self, args: Args, found: str) -> list[Change]:
        return [Change("model files", None, found[:12])] if found else []

    def describe(self, args: Args, found: str) -> dict[str, Any]:
        return {"commit": found, "msg": "" if found else "nothing was replaced"}

    def act(self, args: Args, found: str, changes: list[Change], context: Context) -> dict[str, Any]:
        folders = kept_files.replaced_folders(context)
        changed = sum(kept_files.restore_proved(context, folder) for folder in folders)
        to = ", ".join(commit[:12] for commit in folders.values())
        return {"msg": f"{count(changed, 'model file')} restored to {to}"}


def _replaced(context: Context) -> bool:
    """Return True if another container has the name of the verified one."""
    good = good_states.last(context.state)
    named = containers.inspect(context.docker(), good["spec"]["name"])
    return named is not None and named["Id"] != good["container_id"]

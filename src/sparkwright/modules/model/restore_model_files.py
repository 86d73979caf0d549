from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.host.containers import containers
from sparkwright.host.models import kept_files
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change
from sparkwright.visible import count


class RestoreModelFiles(StateModule["RestoreModelFiles.Args", dict[Path, str]]):
    """The models' folders hold again what the verified server was started with, when another revision took its place.

    For a run that fails between fetching a revision and swapping the servers: the previous server runs on with the old weights in
    its memory, and were it to start again it must find them in its folder too.
    Where another container has the verified one's name already, of a run that was cut off, the files are that one's and stay.

    Returns: commit (of the files that have their places again; empty when nothing had been replaced).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def read(self, args: Args, context: Context) -> dict[Path, str]:
        found = kept_files.replaced_folders(context)
        return found if found and not _replaced(context) else {}

    def differences(self, args: Args, found: dict[Path, str]) -> list[Change]:
        return [Change("model files", None, commit[:12]) for commit in found.values()]

    def describe(self, args: Args, found: dict[Path, str]) -> dict[str, Any]:
        return {"commit": next(iter(found.values()), ""), "msg": "" if found else "nothing was replaced"}

    def act(self, args: Args, found: dict[Path, str], changes: list[Change], context: Context) -> dict[str, Any]:
        changed = sum(kept_files.restore_proved(context, folder) for folder in found)
        to = ", ".join(commit[:12] for commit in found.values())
        return {"msg": f"{count(changed, 'model file')} restored to {to}"}


def _replaced(context: Context) -> bool:
    """Whether another container has the name of the verified one."""
    good = good_states.last(context.state)
    named = containers.inspect(context.docker(), good["spec"]["name"])
    return named is not None and named["Id"] != good["container_id"]

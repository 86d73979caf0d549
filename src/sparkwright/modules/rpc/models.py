from __future__ import annotations

from dataclasses import asdict, dataclass

from sparkwright.host.models import model_folders
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result
from sparkwright.visible import count


class Models(Module["Models.Args"]):
    """List the models on this host: every folder that sparkwright proved, and the containers that use it. Changes nothing.

    Returns: models, each with dir, id, commit, files, size_bytes (on the disk), changed (files not as they were proved), used_by
    (containers, running or not, that mount it).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        found = [asdict(model_folder) for model_folder in model_folders.found(context)]
        return Result(msg=f"{count(len(found), 'model')}", data={"models": found})

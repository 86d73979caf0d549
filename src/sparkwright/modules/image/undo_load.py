from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.host.images import loads
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class UndoLoad(Module["UndoLoad.Args"]):
    """After a `docker load` that failed: what it brought is removed, and names that it took are given back.

    What others pulled, tagged or built meanwhile stays.

    Returns: undone (a sentence each).
    """

    @dataclass(frozen=True)
    class Args:
        before: dict[str, Any] = arg("the engine's names before the load, as `inspect_image` returns them")

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        undone = loads.undo(api, loads.Names(**args.before))
        return Result(msg="; ".join(undone), changed=bool(undone), data={"undone": undone})

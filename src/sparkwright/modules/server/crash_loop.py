from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.containers import containers
from sparkwright.host.containers.crash_loop import MOST, WITHIN_S, break_loop, inspect
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class CrashLoop(Module["CrashLoop.Args"]):
    """A server that keeps dying is not started again and again: its restart policy goes to `no`, once, and that is reported.

    A loop of starts on shared memory leaks what the driver holds, until the host itself fails. More than `most` restarts within
    `within_s`, or an end with exit code 0 of a server that should run, break it; the bundle of the incident is kept. It only
    ever takes a policy away. Checked by the scheduled check; each one remembers the count of restarts, so the first
    that follows a verification already knows where to count from.

    Returns: broken, why, incident, restarts. Fails when it broke a loop; it changes nothing else.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        most: int = arg("restarts allowed before it counts as a loop", default=MOST)
        within_s: float = arg("the time they are counted over, seconds", default=WITHIN_S)

    def run(self, args: Args, context: Context) -> Result:
        container = containers.inspect(context.docker(), args.name)
        if container is None:
            return Result(msg="no server", data={"broken": False})
        why = inspect(container, context, most=args.most, within_s=args.within_s)
        restarts = int(container.get("RestartCount", 0))
        if not why:
            return Result(msg=f"{restarts} restarts since its start", data={"broken": False, "restarts": restarts})
        data = {"broken": True, "why": why, "restarts": restarts}
        if context.check:
            return Result(changed=True, msg=why, data=data)
        raise BrokenLoop(args.name, why, {**data, "incident": break_loop(context, args.name, why)})


class BrokenLoop(Failed):
    """The error for a crash loop that was stopped. data: the data to register."""

    def __init__(self, name: str, why: str, data: dict[str, Any]) -> None:
        fix = "`invoke incident` fetches its diagnostics; `invoke deploy` or `invoke rollback` starts a server again."
        super().__init__(f"{name} is not restarted: {why}.", fix=fix)
        self.data = data

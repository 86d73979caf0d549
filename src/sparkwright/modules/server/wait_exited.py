from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host import gpu_processes
from sparkwright.host.containers import containers
from sparkwright.host.memory import footprint
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg

POLL_S = 0.1


class WaitExited(Module["WaitExited.Args"]):
    """The server that was stopped is really gone: not running for the engine, and no process in its cgroup.

    An engine can call a container stopped while a process of it hangs in the driver; that process still holds its memory.

    Returns: waited_s. Fails after timeout_s with the processes that are left.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name, before it was renamed")
        timeout_s: float = arg("how long its processes may take to exit, seconds", default=30.0)

    def run(self, args: Args, context: Context) -> Result:
        stopped = footprint.stopped_now(context)
        if context.check or not stopped.get("id"):
            return Result(msg="nothing was stopped", data={"waited_s": 0.0})
        started_s = time.monotonic()
        while True:
            left = _left(stopped["id"], context)
            waited_s = time.monotonic() - started_s
            if not left:
                return Result(msg="", data={"waited_s": round(waited_s, 2)})
            if waited_s > args.timeout_s:
                fix = "Only a reboot ends a process stuck in the driver; see `dmesg | tail` on the host."
                what = f"after {waited_s:.0f} s there is still {', '.join(left)}"
                raise Failed(f"{args.name} is stopped, but {what}.", fix=fix)
            context.progress(0, len(left), text=f"waiting for {left[0]} to exit")
            time.sleep(POLL_S)


def _left(container_id: str, context: Context) -> list[str]:
    """Return descriptions of what is left of a container: the container itself, and its processes."""
    found: dict[str, Any] | None = containers.inspect(context.docker(), container_id)
    running = ["the container, running"] if found is not None and found["State"]["Running"] else []
    return running + [
        f"process {pid}" for pid in ([] if context.machine.root else gpu_processes.processes_of(container_id))
    ]

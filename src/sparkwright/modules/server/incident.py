from __future__ import annotations

from dataclasses import dataclass

from sparkwright.host.module import Context, Module
from sparkwright.host.records import incidents
from sparkwright.protocol.result import Result, arg


class Incident(Module["Incident.Args"]):
    """Collects incident diagnostics of a server that failed on the host, before it is removed.

    Its log and inspect, meminfo, the table of who holds the memory, the kernel's lines, the containers, nvidia-smi, the plan and
    the events. `invoke incident --host H` fetches it. Secrets become dots.

    Returns: incident (its id), folder.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("what failed, a sentence", default="")

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="would collect diagnostics")
        folder = incidents.save(context, args.name, args.why)
        data = {"incident": folder.name, "folder": str(folder)}
        return Result(msg=f"fetch with `invoke incident`: {folder.name}", data=data)

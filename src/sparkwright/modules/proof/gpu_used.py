from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import containers
from sparkwright.host.memory import gpu_use
from sparkwright.host.memory.gpu_use import Use
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class GpuUsed(Module["GpuUsed.Args"]):
    """The server computes on the GPU: a process of its container is among the compute processes of nvidia-smi.

    Where it is not, the engine's own log counts: the line that names the device of its buffers. Neither seen is a failure for a
    container that asks for a GPU: a CPU-only image serves all the same, at a fraction of the speed. When nvidia-smi can't be
    asked and the log does not tell either, the answer is unknown: the run goes on and ends with 4.

    Returns: verdict (gpu, no gpu, unknown, not asked for), processes (pid, name, bytes), evidence.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        gpus: str = arg("the GPUs that the recipe asks for; empty: none, nothing is checked", default="all")

    def run(self, args: Args, context: Context) -> Result:
        if not args.gpus:
            return Result(
                msg="not checked: the recipe asks for no GPU", data={"verdict": "not asked for", "processes": []}
            )
        if not containers.running(context.docker(), args.name):
            raise Failed(f"container {args.name} is no longer running.")
        return judge(gpu_use.inspect(args.name, context))


def judge(use: Use) -> Result:
    """Return the result for an observed use of the GPU. Pure."""
    data: dict[str, Any] = {"verdict": use.verdict, "processes": [asdict(gpu_process) for gpu_process in use.mine]}
    if use.mine:
        return Result(msg=f"uses the GPU: {use.why}", data=data)
    data["evidence"] = use.evidence
    if use.verdict == "gpu":
        return Result(msg=f"uses the GPU by its own log: {use.why}", data=data)
    if use.verdict == "unknown":
        msg = f"unknown whether the server uses the GPU: {use.why}."
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data=data)
    reason = f"; {use.why}" if use.log.cpu else f": {use.why}"
    return Result(failed=True, msg=f"the server does not use the GPU{reason}.", fix=gpu_use.FIX, data=data)

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines.log.line import Line
from sparkwright.engines.log.text import lines_of
from sparkwright.errors import Exit, Failed, SparkwrightError
from sparkwright.host.containers import containers, engine_of, log_reading
from sparkwright.host.memory import gpu_processes
from sparkwright.host.memory.gpu_processes import GpuProcess, Listed
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import gib

#: the columns of `docker top`
COLUMNS = "-eo pid,comm"
FIX = "Check that the image is built for this GPU and architecture (some arm64 images are CPU-only)."


@dataclass(frozen=True, slots=True)
class DeviceLog:
    """The first line of the engine's log that tells of a GPU, and of none; empty where there is no such line."""

    gpu: str = ""
    cpu: str = ""


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
        listed = gpu_processes.inspect(context)
        pids, error = _pids(args.name, context)
        mine = [one for one in listed.processes if one.pid in pids]
        if mine:
            data = {"verdict": "gpu", "processes": [asdict(one) for one in mine]}
            return Result(msg=f"uses the GPU: {', '.join(map(_words, mine))}", data=data)
        unseen = listed.error or error
        return judge(_device_log(args.name, context), listed, unseen)


def judge(logged: DeviceLog, listed: Listed, unseen: str) -> Result:
    """What is so when no process was seen. unseen: why not, empty when nvidia-smi lists none of the container. Pure."""
    lines = [f"engine log: {line}" for line in (logged.gpu, logged.cpu) if line]
    others = ", ".join(map(_words, listed.processes)) or "none"
    evidence = [unseen or f"nvidia-smi: no compute process of the container (others: {others})", *lines]
    data: dict[str, Any] = {"processes": [], "evidence": evidence}
    if logged.gpu:
        why = unseen or "nvidia-smi lists no process of it"
        return Result(msg=f"uses the GPU by its own log: {logged.gpu} ({why})", data=data | {"verdict": "gpu"})
    if logged.cpu:
        msg = f"the server does not use the GPU; its log says: {logged.cpu}."
        return Result(failed=True, msg=msg, fix=FIX, data=data | {"verdict": "no gpu"})
    if unseen:
        msg = f"unknown whether the server uses the GPU: {unseen.rstrip('.')}, and its log does not tell."
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data=data | {"verdict": "unknown"})
    msg = "the server does not use the GPU: nvidia-smi lists no compute process of its container, and its log names no GPU."
    return Result(failed=True, msg=msg, fix=FIX, data=data | {"verdict": "no gpu"})


def _pids(name: str, context: Context) -> tuple[set[int], str]:
    """The processes of the container, as the host counts them; why they are not known."""
    from docker.errors import APIError

    try:
        found = context.docker().api.top(name, ps_args=COLUMNS)
        at = found["Titles"].index("PID")
        return {int(row[at]) for row in found["Processes"]}, ""
    except APIError as error:
        return set(), f"Docker does not list the processes of {name}: {error.explanation or error}"
    except (KeyError, ValueError, IndexError, TypeError):
        return set(), f"Docker lists the processes of {name} without their ids"


def _device_log(name: str, context: Context) -> DeviceLog:
    """What the log of the last start says of its device."""
    gpu = cpu = ""
    try:
        book = engine_of.named(context.docker(), name).log
        for line in lines_of(log_reading.StartLog(context.docker(), name)):
            gpu = gpu or _first(book.on_gpu, line)
            cpu = cpu or _first(book.on_cpu, line)
    except SparkwrightError:
        return DeviceLog()
    return DeviceLog(gpu, cpu)


def _first(rows: Iterable[Line], line: str) -> str:
    """What a line holds of the first row that it matches."""
    return next((found.group().strip() for row in rows if (found := row.match(line))), "")


def _words(one: GpuProcess) -> str:
    size = "" if one.bytes is None else f", {gib(one.bytes)} GiB"
    return f"{one.name or 'a process'} (pid {one.pid}{size})"

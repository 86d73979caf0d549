"""The processes that use the GPU, the container of a process, and a container's use of the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.engines.log.text import Line, lines_of
from sparkwright.errors import SparkwrightError
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels, log_reader
from sparkwright.host.module import Context
from sparkwright.host.nvidia_smi import GpuProcess, Listed
from sparkwright.units import gib

# The container of a process, from its cgroup in the kernel.
#
# Docker's cgroup is docker/ID (cgroupfs) or docker-ID.scope (systemd), in version 1 and 2; ID is 64 hex digits.

CONTAINER = re.compile(
    r"(?:docker|containerd|cri-containerd|libpod|crio)[-/:]{1,4}(?:[\w.-]{1,200}[-/:])?([0-9a-f]{64})"
)


def container_of(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Return the id of the container that a process runs in; empty if it runs in none or has exited."""
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    found = CONTAINER.search(text)
    return found[1] if found else ""


def processes_of(container_id: str, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a container that still exist, including exiting ones; zombies, which hold nothing, are left out."""
    pids = (int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return sorted(pid for pid in pids if container_of(pid, proc=proc) == container_id and not _zombie(proc / str(pid)))


def _zombie(folder: Path) -> bool:
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


#: the columns of `docker top`
COLUMNS = "-eo pid,comm"
FIX = "Check that the image is built for this GPU and architecture (some arm64 images are CPU-only)."


@dataclass(frozen=True, slots=True)
class DeviceLog:
    """The first line of the engine's log that reports a GPU, and the first that reports none; empty if there is none."""

    gpu: str = ""
    cpu: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """A container's use of the GPU, with the evidence."""

    #: its processes on the GPU
    mine: tuple[GpuProcess, ...] = ()
    listed: Listed = Listed()
    #: why its processes could not be listed; empty if nvidia-smi lists none of them
    unseen: str = ""
    log: DeviceLog = DeviceLog()

    @property
    def verdict(self) -> Literal["gpu", "no gpu", "unknown"]:
        """The verdict; without a visible process, the log decides."""
        if self.mine or self.log.gpu:
            return "gpu"
        return "unknown" if self.unseen and not self.log.cpu else "no gpu"

    @property
    def why(self) -> str:
        """The evidence for the verdict, as a clause."""
        if self.mine:
            return ", ".join(map(words, self.mine))
        if self.log.gpu:
            why = self.unseen or "nvidia-smi lists no process of it"
            return f"{self.log.gpu} ({why})"
        if self.log.cpu:
            return f"its log says: {self.log.cpu}"
        if self.unseen:
            return f"{self.unseen.rstrip('.')}, and its log does not tell"
        return "nvidia-smi lists no compute process of its container, and its log names no GPU"

    @property
    def evidence(self) -> list[str]:
        """The evidence if no process was visible."""
        lines = [f"engine log: {line}" for line in (self.log.gpu, self.log.cpu) if line]
        others = ", ".join(map(words, self.listed.processes)) or "none"
        return [self.unseen or f"nvidia-smi: no compute process of the container (others: {others})", *lines]


def inspect(name: str, context: Context) -> Use:
    """Return a running container's use of the GPU. Never raises."""
    listed = nvidia_smi.list_processes(context.machine)
    pids, error = _pids(name, context)
    mine = tuple(process for process in listed.processes if process.pid in pids)
    return Use(mine, listed) if mine else Use((), listed, listed.error or error, _device_log(name, context))


def _pids(name: str, context: Context) -> tuple[set[int], str]:
    """Return the container's processes in the host's pid namespace, and the reason if they are unknown."""
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
    """Return the log lines of the last start that name its device."""
    gpu = cpu = ""
    try:
        book = container_labels.engine_named(context.docker(), name).log
        for line in lines_of(log_reader.StartLog(context.docker(), name)):
            gpu = gpu or _first(book.on_gpu, line)
            cpu = cpu or _first(book.on_cpu, line)
    except SparkwrightError:
        return DeviceLog()
    return DeviceLog(gpu, cpu)


def _first(rows: Iterable[Line], line: str) -> str:
    """Return the part of a line that the first matching row matches; empty if none does."""
    return next((found.group().strip() for row in rows if (found := row.match(line))), "")


def words(gpu_process: GpuProcess) -> str:
    """Return a process with its memory, in words."""
    size = "" if gpu_process.bytes is None else f", {gib(gpu_process.bytes)} GiB"
    return f"{gpu_process.name or 'a process'} (pid {gpu_process.pid}{size})"

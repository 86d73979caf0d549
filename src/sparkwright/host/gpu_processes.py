"""Find the container of a process, and determine whether a container uses the GPU.

A process's container is derived from its cgroup path: docker/ID (cgroupfs) or docker-ID.scope (systemd), in cgroup versions 1
and 2. ID has 64 hex digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.engines.log.text import LinePattern, iter_lines
from sparkwright.errors import SparkwrightError
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels, log_reader
from sparkwright.host.module import Context
from sparkwright.host.nvidia_smi import GpuProcess, ProcessList
from sparkwright.units import format_gib

CONTAINER_CGROUP_PATTERN = re.compile(
    r"(?:docker|containerd|cri-containerd|libpod|crio)[-/:]{1,4}(?:[\w.-]{1,200}[-/:])?([0-9a-f]{64})"
)
#: the columns of `docker top`
TOP_OPTIONS = "-eo pid,comm"
FIX = "Check that the image is built for this GPU and architecture (some arm64 images are CPU-only)."


@dataclass(frozen=True, slots=True)
class DeviceLines:
    """The first log line that names a GPU, and the first that reports a run on the CPU; empty if there is none."""

    gpu_line: str = ""
    cpu_line: str = ""


def find_container_id(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Return the Id of a process's container, or "" if it runs outside containers or has exited."""
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    match = CONTAINER_CGROUP_PATTERN.search(text)
    return match[1] if match else ""


def list_container_pids(container_id: str, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the pids of a container, including exiting processes, but not zombies, which hold no memory."""
    pids = (int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return sorted(
        pid for pid in pids if find_container_id(pid, proc=proc) == container_id and not _is_zombie(proc / str(pid))
    )


def _is_zombie(folder: Path) -> bool:
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A container's use of the GPU, with the evidence."""

    #: the container's processes on the GPU
    own_processes: tuple[GpuProcess, ...] = ()
    #: all processes on the GPU
    all_processes: ProcessList = ProcessList()
    #: why the container's processes could not be listed
    listing_error: str = ""
    #: filled only if none of the container's processes is visible
    device_lines: DeviceLines = DeviceLines()

    @property
    def verdict(self) -> Literal["gpu", "no gpu", "unknown"]:
        if self.own_processes or self.device_lines.gpu_line:
            return "gpu"
        return "unknown" if self.listing_error and not self.device_lines.cpu_line else "no gpu"

    @property
    def reason(self) -> str:
        """The reason for the verdict, as a clause."""
        if self.own_processes:
            return ", ".join(map(format_process, self.own_processes))
        if self.device_lines.gpu_line:
            return (
                f"{self.device_lines.gpu_line} ({self.listing_error or 'nvidia-smi lists no process in the container'})"
            )
        if self.device_lines.cpu_line:
            return f"engine log: {self.device_lines.cpu_line}"
        if self.listing_error:
            return f"{self.listing_error.rstrip('.')}, and the engine log names no device"
        return "nvidia-smi lists no compute process in the container, and the engine log names no GPU"

    @property
    def evidence(self) -> list[str]:
        """Lines of evidence, for a container without a visible process."""
        log_lines = (self.device_lines.gpu_line, self.device_lines.cpu_line)
        lines = [f"engine log: {line}" for line in log_lines if line]
        other_processes = ", ".join(map(format_process, self.all_processes.processes)) or "none"
        return [
            self.listing_error or f"nvidia-smi: no compute process in the container (others: {other_processes})",
            *lines,
        ]


def inspect(name: str, context: Context) -> GpuUse:
    """Return a running container's use of the GPU. A failure to determine it is part of the result."""
    all_processes = nvidia_smi.list_processes(context.machine)
    pids, error = _list_pids(name, context)
    own_processes = tuple(process for process in all_processes.processes if process.pid in pids)
    if own_processes:
        return GpuUse(own_processes, all_processes)
    return GpuUse((), all_processes, all_processes.error or error, _read_device_lines(name, context))


def _list_pids(name: str, context: Context) -> tuple[set[int], str]:
    """Return the container's pids on the host, and an error message if they are unknown."""
    from docker.errors import APIError

    try:
        table = context.docker().api.top(name, ps_args=TOP_OPTIONS)
        column = table["Titles"].index("PID")
        return {int(row[column]) for row in table["Processes"]}, ""
    except APIError as error:
        return set(), f"Docker could not list the processes of {name}: {error.explanation or error}"
    except (KeyError, ValueError, IndexError, TypeError):
        return set(), f"Docker listed the processes of {name} without their pids"


def _read_device_lines(name: str, context: Context) -> DeviceLines:
    """Return the log lines of the container's last start that name the engine's device."""
    gpu_line = cpu_line = ""
    try:
        log_rules = container_labels.engine_by_name(context.docker(), name).log
        for line in iter_lines(log_reader.StartLog(context.docker(), name)):
            gpu_line = gpu_line or _match_first(log_rules.gpu_lines, line)
            cpu_line = cpu_line or _match_first(log_rules.cpu_lines, line)
    except SparkwrightError:
        return DeviceLines()
    return DeviceLines(gpu_line, cpu_line)


def _match_first(patterns: Iterable[LinePattern], line: str) -> str:
    """Return the part of a line that matches the first matching pattern, or ""."""
    return next((match.group().strip() for pattern in patterns if (match := pattern.match(line))), "")


def format_process(gpu_process: GpuProcess) -> str:
    """Format a process with its pid and memory."""
    size = "" if gpu_process.bytes is None else f", {format_gib(gpu_process.bytes)} GiB"
    return f"{gpu_process.name or 'a process'} (pid {gpu_process.pid}{size})"

"""Processes of a host: those that use the GPU, and the container of a process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparkwright.errors import SparkwrightError
from sparkwright.host.module import Context

QUERY = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")

NUMBER = re.compile("[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on the GPU."""

    #: in the host's pid namespace
    pid: int
    name: str
    #: None if the driver does not report it
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Listed:
    """The compute processes that nvidia-smi lists."""

    processes: tuple[GpuProcess, ...] = ()
    #: why the list is missing or incomplete; "" if it is complete
    error: str = ""


def inspect_gpu_processes(context: Context) -> Listed:
    """Return the compute processes that nvidia-smi lists now. Never raises."""
    try:
        answer = context.machine.run(QUERY, timeout_s=5)
    except SparkwrightError as error:
        return Listed(error=error.message)
    if not answer.ok:
        lines = (answer.err or answer.out).strip().splitlines()
        return Listed(error=f"nvidia-smi failed with exit code {answer.code}" + (f": {lines[0]}" if lines else ""))
    return parse(answer.out)


def parse(printed: str) -> Listed:
    """Parse the rows of QUERY. A row without a pid, if this user may not see it, makes the list incomplete. Pure."""
    found, unread = [], ""
    for line in filter(None, map(str.strip, printed.splitlines())):
        pid, _, rest = line.partition(",")
        name, _, mib = (part.strip() for part in rest.rpartition(","))
        if NUMBER.fullmatch(pid.strip()):
            found.append(GpuProcess(int(pid), name, int(mib) * 2**20 if NUMBER.fullmatch(mib) else None))
        else:
            unread = f"nvidia-smi lists a process without its pid: {line}"
    return Listed(tuple(found), unread)


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

"""The container of a process, from its cgroup in the kernel.

Docker's cgroup is docker/ID (cgroupfs) or docker-ID.scope (systemd), in version 1 and 2; ID is 64 hex digits.
"""

from __future__ import annotations

import re
from pathlib import Path

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

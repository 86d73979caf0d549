"""The compute processes in nvidia-smi, with their GPU memory, which a GB10 reports per process only."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def inspect(context: Context) -> Listed:
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

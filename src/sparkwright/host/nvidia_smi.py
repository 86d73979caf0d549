"""nvidia-smi: every question to it, and its answers as data.

A question about the GPU is the list of values that it asks for, by the names in FIELDS. nvidia-smi prints one row of cells a GPU;
a Spark has one. A cell that the driver does not report is "[N/A]" and stands for unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.errors import SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.trust.bounds import number_of

#: the whole table, for people
TABLE = ("nvidia-smi",)
FORM = "--format=csv,noheader,nounits"
#: nvidia-smi's field of each value
FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "clock_mhz": "clocks.sm",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "utilization_percent": "utilization.gpu",
    "slowed_by_hardware": "clocks_event_reasons.hw_thermal_slowdown",
    "slowed_by_software": "clocks_event_reasons.sw_thermal_slowdown",
}
IDENTITY = ("name", "driver")
#: a sample while a server decodes
SAMPLE = ("clock_mhz", "power_w", "temperature_c", "utilization_percent")
LOAD = ("utilization_percent", "clock_mhz", "power_w")
HEAT = ("temperature_c", "clock_mhz", "slowed_by_hardware", "slowed_by_software")
#: the cell of a slowdown that is in effect
SLOWED = "Active"
#: upper bounds of a figure, which is unknown above it
MOST, MOST_C = 1e6, 1000.0
PROCESSES = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", FORM)
TIMEOUT_S = 5.0
NUMBER = re.compile("[0-9]{1,10}")


def query(values: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that asks for these values."""
    return ("nvidia-smi", f"--query-gpu={','.join(FIELDS[value] for value in values)}", FORM)


def cells(printed: str, values: Sequence[str]) -> dict[str, str]:
    """Return the first GPU's cells by value; empty if there is no whole row. Pure."""
    rows = [line for line in printed.splitlines() if line.strip() and line.count(",") == len(values) - 1]
    return dict(zip(values, map(str.strip, rows[0].split(",")), strict=True)) if rows else {}


def figures(printed: str, values: Sequence[str]) -> dict[str, float | None]:
    """Return the first GPU's figures by value, None for unknown ones; empty if there is no whole row. Pure."""
    found = cells(printed, values)
    return {value: number_of(cell, most=MOST_C if value == "temperature_c" else MOST) for value, cell in found.items()}


def ask(machine: Machine, values: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Return the printed rows of these values now; "" if nvidia-smi fails or is missing."""
    try:
        answer = machine.run(query(values), timeout_s=timeout_s)
    except SparkwrightError:
        return ""
    return answer.out if answer.ok else ""


def sample(machine: Machine) -> dict[str, float | None]:
    """Return a sample of the GPU now; empty if nvidia-smi fails."""
    return figures(ask(machine, SAMPLE), SAMPLE)


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


def list_processes(machine: Machine) -> Listed:
    """Return the compute processes that nvidia-smi lists now. Never raises."""
    try:
        answer = machine.run(PROCESSES, timeout_s=TIMEOUT_S)
    except SparkwrightError as error:
        return Listed(error=error.message)
    if not answer.ok:
        lines = (answer.err or answer.out).strip().splitlines()
        return Listed(error=f"nvidia-smi failed with exit code {answer.code}" + (f": {lines[0]}" if lines else ""))
    return listed(answer.out)


def listed(printed: str) -> Listed:
    """Parse the rows of PROCESSES. A row without a pid, if this user may not see it, makes the list incomplete. Pure."""
    found, unread = [], ""
    for line in filter(None, map(str.strip, printed.splitlines())):
        pid, _, rest = line.partition(",")
        name, _, mib = (part.strip() for part in rest.rpartition(","))
        if NUMBER.fullmatch(pid.strip()):
            found.append(GpuProcess(int(pid), name, int(mib) * 2**20 if NUMBER.fullmatch(mib) else None))
        else:
            unread = f"nvidia-smi lists a process without its pid: {line}"
    return Listed(tuple(found), unread)

"""Query nvidia-smi and parse its output.

A query is a list of value names from FIELDS. nvidia-smi prints a row of cells per GPU; a Spark has one GPU. A value that the
driver does not report is "[N/A]", which counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.errors import SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.trust.bounds import parse_number

#: prints nvidia-smi's table for people
TABLE_COMMAND = ("nvidia-smi",)
FORMAT_OPTION = "--format=csv,noheader,nounits"
#: nvidia-smi's name for each value, by our name for it
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
IDENTITY_VALUES = ("name", "driver")
#: sampled while a server decodes
SAMPLE_VALUES = ("clock_mhz", "power_w", "temperature_c", "utilization_percent")
LOAD_VALUES = ("utilization_percent", "clock_mhz", "power_w")
HEAT_VALUES = ("temperature_c", "clock_mhz", "slowed_by_hardware", "slowed_by_software")
#: content of a `slowed_by_...` cell during a slowdown
SLOWDOWN_ACTIVE = "Active"
#: larger values are invalid and count as unknown
MAX_FIGURE, MAX_TEMPERATURE_C = 1e6, 1000.0
PROCESSES_COMMAND = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", FORMAT_OPTION)
TIMEOUT_S = 5.0
NUMBER_PATTERN = re.compile("[0-9]{1,10}")


def query_command(values: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that queries these values."""
    return ("nvidia-smi", f"--query-gpu={','.join(FIELDS[value] for value in values)}", FORMAT_OPTION)


def parse_cells(output: str, values: Sequence[str]) -> dict[str, str]:
    """Return the first GPU's cells by value; empty if there is no complete row."""
    rows = [line for line in output.splitlines() if line.strip() and line.count(",") == len(values) - 1]
    return dict(zip(values, map(str.strip, rows[0].split(",")), strict=True)) if rows else {}


def parse_figures(output: str, values: Sequence[str]) -> dict[str, float | None]:
    """Return the first GPU's figures by value, None for unknown ones; empty if there is no complete row."""
    return {
        value: parse_number(cell, maximum=MAX_TEMPERATURE_C if value == "temperature_c" else MAX_FIGURE)
        for value, cell in parse_cells(output, values).items()
    }


def query_gpu(machine: Machine, values: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Return nvidia-smi's output for these values, or "" if it fails or is missing."""
    try:
        completed = machine.run(query_command(values), timeout_s=timeout_s)
    except SparkwrightError:
        return ""
    return completed.out if completed.ok else ""


def sample_gpu(machine: Machine) -> dict[str, float | None]:
    """Return the current SAMPLE_VALUES of the GPU; empty if nvidia-smi fails."""
    return parse_figures(query_gpu(machine, SAMPLE_VALUES), SAMPLE_VALUES)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on the GPU."""

    #: in the host's pid namespace
    pid: int
    name: str
    #: None if the driver does not report it
    bytes: int | None


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The compute processes that nvidia-smi lists."""

    processes: tuple[GpuProcess, ...] = ()
    #: why the list is missing or incomplete; "" if it is complete
    error: str = ""


def list_processes(machine: Machine) -> ProcessList:
    """Return the compute processes that nvidia-smi lists. A failure is returned as the list's error."""
    try:
        completed = machine.run(PROCESSES_COMMAND, timeout_s=TIMEOUT_S)
    except SparkwrightError as error:
        return ProcessList(error=error.message)
    if not completed.ok:
        lines = (completed.err or completed.out).strip().splitlines()
        details = f": {lines[0]}" if lines else ""
        return ProcessList(error=f"nvidia-smi failed with exit code {completed.code}{details}")
    return parse_processes(completed.out)


def parse_processes(output: str) -> ProcessList:
    """Parse the output of PROCESSES_COMMAND, in which processes that are hidden from this user have no pid."""
    processes, error = [], ""
    for line in filter(None, map(str.strip, output.splitlines())):
        pid, _, rest = line.partition(",")
        name, _, mib = (part.strip() for part in rest.rpartition(","))
        if NUMBER_PATTERN.fullmatch(pid.strip()):
            processes.append(GpuProcess(int(pid), name, int(mib) * 2**20 if NUMBER_PATTERN.fullmatch(mib) else None))
        else:
            error = f"nvidia-smi listed a process without its pid: {line}"
    return ProcessList(tuple(processes), error)

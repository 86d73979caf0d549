"""The Python API; see docs/api.md."""

from sparkwright.api.fleet import Fleet, Options
from sparkwright.api.results import (
    Cause,
    Change,
    Diagnosis,
    Event,
    History,
    HostInfo,
    HostResult,
    HostStatus,
    Incident,
    Log,
    MemoryBudget,
    MemoryRow,
    Report,
    RunResult,
    TaskResult,
)
from sparkwright.api.run import Run
from sparkwright.errors import Exit, Failed, Inconclusive, Refused, SparkwrightError, Unreachable

__all__ = [
    "Cause",
    "Change",
    "Diagnosis",
    "Event",
    "Exit",
    "Failed",
    "Fleet",
    "History",
    "HostInfo",
    "HostResult",
    "HostStatus",
    "Incident",
    "Inconclusive",
    "Log",
    "MemoryBudget",
    "MemoryRow",
    "Options",
    "Refused",
    "Report",
    "Run",
    "RunResult",
    "SparkwrightError",
    "TaskResult",
    "Unreachable",
]

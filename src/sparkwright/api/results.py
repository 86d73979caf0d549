"""The results that the API returns. Texts from hosts are limited in length, and their control characters are made visible."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.console.rows import Cause, Diagnosis, HostInfo, HostStatus, Report
from sparkwright.engines.budget import Budget as MemoryBudget
from sparkwright.engines.budget import Row as MemoryRow
from sparkwright.errors import Exit, Failed, Inconclusive, Refused, SparkwrightError, Unreachable

__all__ = [
    "Cause",
    "Change",
    "Diagnosis",
    "Event",
    "History",
    "HostInfo",
    "HostResult",
    "HostStatus",
    "Incident",
    "Log",
    "MemoryBudget",
    "MemoryRow",
    "Report",
    "RunResult",
    "TaskResult",
]
_ERROR_TYPES: Mapping[Exit, type[SparkwrightError]] = {
    Exit.FAILED: Failed,
    Exit.UNREACHABLE: Unreachable,
    Exit.INCONCLUSIVE: Inconclusive,
    Exit.REFUSED: Refused,
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run."""

    #: e.g. `task_finished`
    kind: str
    #: name of the host; empty for an event of the whole fleet
    host: str
    #: seconds since the epoch
    time: float
    #: the other fields; docs/schemas/events.json lists them by kind
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed field of a task's diff."""

    field: str
    #: previous value as JSON; None if there was none
    before: Any = None
    #: new value as JSON; None if there is none
    after: Any = None
    #: reason for the change, if it is not obvious
    why: str = ""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task."""

    host: str
    name: str
    module: str
    #: ok, changed, failed, skipped, rescued or ignored; in check mode, the predicted status
    status: str
    msg: str = ""
    #: how to resolve a failure
    fix: str = ""
    diff: tuple[Change, ...] = ()
    #: values that the module returns (docs/modules)
    data: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of a run on one host: the exit code, the number of tasks by status, and the reason for a failure in `msg`."""

    host: str
    exit: Exit
    ok: int = 0
    changed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    msg: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    #: the worst exit code of its hosts, which is the command's exit code
    exit: Exit
    #: results by host name
    hosts: Mapping[str, HostResult] = field(default_factory=dict)
    #: in the order in which they finished
    tasks: tuple[TaskResult, ...] = ()
    #: reason why the run stopped before all hosts were finished
    stopped: str = ""

    @property
    def changes(self) -> tuple[TaskResult, ...]:
        """The tasks that changed something, or would change something in a plan."""
        return tuple(task for task in self.tasks if task.status == "changed")

    @property
    def budgets(self) -> dict[str, MemoryBudget]:
        """Memory budgets by host name, for hosts whose memory the run checked; see docs/memory.md."""
        budgets_by_host: dict[str, MemoryBudget] = {}
        for task in self.tasks:
            if "budget" in task.data:
                with contextlib.suppress(ValueError):  # data of hosts is untrusted
                    budgets_by_host[task.host] = MemoryBudget.of_json(task.data["budget"])
        return budgets_by_host

    @property
    def ok(self) -> bool:
        """True if every host succeeded: exit code 0, or 2.

        Exit code 2 is a plan with changes, or a server that works but differs from its recipe.
        """
        return self.exit in (Exit.OK, Exit.CHANGES)

    def check(self) -> RunResult:
        """Return the result, or raise the SparkwrightError of the first host that failed."""
        for host in self.hosts.values():
            if host.exit in _ERROR_TYPES:
                raise _ERROR_TYPES[host.exit](host.msg or f"exit code {int(host.exit)}.", where=host.host)
        if not self.ok:
            raise _ERROR_TYPES[self.exit](self.stopped or f"exit code {int(self.exit)}.")
        return self


@dataclass(frozen=True, slots=True)
class Log:
    """The end of a server's log."""

    host: str
    text: str
    #: settings that the engine reported when it last started, as in `logs --state`
    state: Mapping[str, Any]
    #: True if the log contains an engine's start
    known: bool
    #: reason why there is no log, with the exit code in `exit`
    error: str = ""
    exit: Exit = Exit.OK


@dataclass(frozen=True, slots=True)
class History:
    """The changes to a host's server."""

    host: str
    #: entries as in `history --json`, newest first
    acts: tuple[Mapping[str, Any], ...] = ()
    #: reason why there is no answer
    error: str = ""
    exit: Exit = Exit.OK


@dataclass(frozen=True, slots=True)
class Incident:
    """The diagnostics of a failure."""

    host: str
    #: id of the failed run
    incident: str = ""
    #: texts by file name
    files: Mapping[str, str] = field(default_factory=dict)
    #: reason why there are no diagnostics
    error: str = ""
    exit: Exit = Exit.OK

"""What the API returns: frozen, with nothing in it that has to be closed. Texts of a host are bounded and visible already."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.console.status_row import Row as HostStatus
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
_ERRORS: Mapping[Exit, type[SparkwrightError]] = {
    Exit.FAILED: Failed,
    Exit.UNREACHABLE: Unreachable,
    Exit.INCONCLUSIVE: Inconclusive,
    Exit.REFUSED: Refused,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run as it came. kind: as `task_finished`. host: empty for the whole fleet's. time: seconds since the epoch.

    fields: the rest, as docs/schemas/events.json has them for this kind.
    """

    kind: str
    host: str
    time: float
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs. before, after: plain JSON values, None where there is none. why: where it is not obvious."""

    field: str
    before: Any = None
    after: Any = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task that ended. status: ok, changed, failed, skipped, rescued or ignored; in check mode what it would be.

    data: what its module returns (docs/modules). fix: what to do about a failure.
    """

    host: str
    name: str
    module: str
    status: str
    msg: str = ""
    fix: str = ""
    diff: tuple[Change, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HostResult:
    """How a run ended on one host: its exit code, how many tasks ended how, and the sentence that says why."""

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
    """How a run ended. exit: the worst of its hosts', as the command's exit code. hosts: by name. tasks: in the order they ended.

    stopped: why nothing more was begun, when hosts were left.
    """

    exit: Exit
    hosts: Mapping[str, HostResult] = field(default_factory=dict)
    tasks: tuple[TaskResult, ...] = ()
    stopped: str = ""

    @property
    def changes(self) -> tuple[TaskResult, ...]:
        """The tasks that changed something; of a plan those that would."""
        return tuple(task for task in self.tasks if task.status == "changed")

    @property
    def budgets(self) -> dict[str, MemoryBudget]:
        """The memory budget of each host's server, by host, where the run checked the memory; see docs/memory.md."""
        found: dict[str, MemoryBudget] = {}
        for task in self.tasks:
            if "budget" in task.data:
                with contextlib.suppress(ValueError):  # a host may answer anything
                    found[task.host] = MemoryBudget.of_json(task.data["budget"])
        return found

    @property
    def ok(self) -> bool:
        """Whether every host ended well: exit code 0, or 2 of a plan with changes."""
        return self.exit in (Exit.OK, Exit.CHANGES)

    def check(self) -> RunResult:
        """The result itself. Raises the typed error of the first host that did not end well."""
        for host in self.hosts.values():
            if host.exit in _ERRORS:
                raise _ERRORS[host.exit](host.msg or f"exit code {int(host.exit)}.", where=host.host)
        if not self.ok:
            raise _ERRORS[self.exit](self.stopped or f"exit code {int(self.exit)}.")
        return self


@dataclass(frozen=True, slots=True)
class HostInfo:
    """A host of the inventory. connection: ssh, local or sandbox. recipe: None for a host that serves none."""

    host: str
    connection: str
    address: str
    groups: tuple[str, ...] = ()
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """One of a diagnosis. verdict: found, possible, noted, excluded or unknown."""

    cause: str
    verdict: str
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a host is slow or down. tok_per_s: measured now; None: not. expected_by: who says what to expect.

    error: why the host could not be asked; then nothing else is known.
    """

    host: str
    state: str
    summary: str
    fix: str = ""
    error: str = ""
    exit: Exit = Exit.OK
    tok_per_s: float | None = None
    expected_tok_per_s: float | None = None
    expected_by: str | None = None
    container: Mapping[str, Any] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()
    sandbox: bool = False
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Log:
    """The end of an engine's log, and what the log of its last start says (`logs --state`).

    known: whether a start was found. error: why there is no log; exit then says how bad.
    """

    host: str
    text: str
    state: Mapping[str, Any]
    known: bool
    error: str = ""
    exit: Exit = Exit.OK


@dataclass(frozen=True, slots=True)
class History:
    """What was done to a host's server, newest first, each as `history --json` gives it. error: why there is no answer."""

    host: str
    acts: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    exit: Exit = Exit.OK


@dataclass(frozen=True, slots=True)
class Incident:
    """What was kept of a failure. incident: the run. files: their text by name. error: why there is none."""

    host: str
    incident: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    exit: Exit = Exit.OK


@dataclass(frozen=True, slots=True)
class Report:
    """What the scheduled checks of a host saw. span_s: seconds it covers. checks: how many. spans: its states, in order."""

    host: str
    span_s: float
    checks: int
    spans: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    exit: Exit = Exit.OK

"""Changes that were planned and shown but not made yet. Each is bound to its plan and made at most once."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Unpack

from sparkwright.api import Event, Exit, Fleet, Options, Refused, Run, RunResult
from sparkwright.app.plans import plan_cache
from sparkwright.mcp import output

Operation = Literal["deploy", "restart", "rollback"]
#: how long a plan can be confirmed, in seconds
PLAN_LIFETIME_S = 600.0
#: limit on the plans that wait for confirmation, beyond which the oldest are dropped
MAX_WAITING_PLANS = 50

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change to confirm."""

    id: str
    operation: Operation
    #: names of the hosts, in order
    hosts: tuple[str, ...]
    #: digest of the plan, the hosts and the user's files
    digest: str
    planned_s: float
    plan: tuple[dict[str, Any], ...]
    #: the complete plan, in the form of a tool's answer
    answer: dict[str, Any]


class PendingChanges:
    """The plans of one MCP server.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._waiting: dict[str, PlannedChange] = {}
        self._used: set[str] = set()
        self._lock = threading.Lock()

    def plan(self, operation: Operation, hosts: str, on_event: OnEvent) -> PlannedChange | None:
        """Plan an operation as it would run now.

        Returns:
            The plan, whose id may be confirmed; None if there is nothing to do.

        Raises:
            Refused: the plan does not fit into an answer, so it could not be shown completely under its id.
            SparkwrightError: a host would refuse, or is unreachable.
        """
        names = tuple(host.host for host in self._fleet.hosts(hosts))
        digest, plan = self._plan_now(operation, names, on_event)
        if not plan:
            return None
        full_plan = output.build_complete_answer("plan", plan)
        if full_plan is None:
            raise Refused(
                f"the plan has more than {output.MAX_ANSWER_CHARS:,} characters, which no answer shows as a whole.",
                fix=f"Plan fewer hosts at a time, or run `sparkwright {operation} --host {names[0]}` in a terminal.",
            )
        planned = PlannedChange(secrets.token_hex(8), operation, names, digest, self._clock(), plan, full_plan)
        with self._lock:
            self._waiting[planned.id] = planned
            for id in list(self._waiting)[:-MAX_WAITING_PLANS]:
                del self._waiting[id]
        return planned

    def apply(self, id: str, on_event: OnEvent) -> RunResult:
        """Make a change. Raises Refused for a plan that is unknown, was already used, is too old, or is out of date."""
        with self._lock:
            planned = self._waiting.pop(id, None)
            used = id in self._used
            self._used.add(id) if planned else None
        fix = "Plan it again, and show the new plan."
        if planned is None:
            reason = "was used already" if used else "is unknown"
            raise Refused(f"the plan {id} {reason}; a plan is for one change.", fix=fix)
        if self._clock() - planned.planned_s > PLAN_LIFETIME_S:
            raise Refused(f"the plan {id} is older than {PLAN_LIFETIME_S / 60:g} minutes.", fix=fix)
        if self._digest_files() != planned.digest.partition(":")[0]:
            raise Refused(f"the project's files changed since the plan {id} was made.", fix=fix)
        if self._plan_now(planned.operation, planned.hosts, on_event)[0] != planned.digest:
            raise Refused(f"the plan {id} is out of date: the hosts are not as they were when it was made.", fix=fix)
        return _follow_run(self._run(planned.operation, planned.hosts), on_event)

    def _plan_now(
        self, operation: Operation, hosts: tuple[str, ...], on_event: OnEvent
    ) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Return the digest of a current plan, and its tasks with changes. Raises the error of a host that refuses."""
        files = self._digest_files()
        result = _follow_run(self._run(operation, hosts, check=True, diff=True), on_event).check()
        if result.exit is Exit.OK:
            return f"{files}:", ()
        plan = tuple(
            {"host": change.host, "task": change.name, "diff": [asdict(row) for row in change.diff]}
            for change in result.changes
        )
        text = json.dumps([operation, hosts, plan], sort_keys=True, default=str)
        return f"{files}:{hashlib.sha256(text.encode()).hexdigest()}", plan

    def _run(self, operation: Operation, hosts: tuple[str, ...], **options: Unpack[Options]) -> Run:
        return self._fleet.run_playbook(operation, ",".join(hosts), **options)

    def _digest_files(self) -> str:
        try:
            return plan_cache.input_digest(self._fleet.root)
        except (OSError, ValueError) as error:
            raise Refused(f"the project's files can't be read: {error}.", where=str(self._fleet.root)) from None


def _follow_run(run: Run, on_event: OnEvent) -> RunResult:
    for event in run:
        on_event(event)
    return run.result()

"""Planned changes that wait for confirmation. A change is made at most once, and only as planned."""

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
#: time during which a plan can be confirmed, in seconds
PLAN_LIFETIME_S = 600.0
#: maximum number of unconfirmed plans; the oldest are dropped
MAX_WAITING_PLANS = 50

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change that waits for confirmation."""

    id: str
    operation: Operation
    hosts: tuple[str, ...]
    #: digest of the project's files, a colon, and the digest of operation, hosts and plan
    digest: str
    #: monotonic time at which the plan was made
    planned_s: float
    #: answer of the tool `plan_change`, with the complete plan
    answer: dict[str, Any]


class PendingChanges:
    """Planned changes of an MCP server.

    clock: returns monotonic seconds.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._waiting_changes: dict[str, PlannedChange] = {}
        self._used_ids: set[str] = set()
        self._lock = threading.Lock()

    def plan(self, operation: Operation, hosts: str, on_event: OnEvent) -> PlannedChange | None:
        """Plan an operation. Returns None if nothing would change.

        Raises Refused if the plan is too large to be shown completely, and the error of a host that refuses or is unreachable.
        """
        names = tuple(host.host for host in self._fleet.hosts(hosts))
        digest, plan = self._plan_now(operation, names, on_event)
        if not plan:
            return None
        full_plan = output.build_complete_answer("plan", plan)
        if full_plan is None:
            raise Refused(
                f"the plan has more than {output.MAX_ANSWER_CHARS:,} characters, too many for one answer.",
                fix=f"Plan fewer hosts at a time, or run `sparkwright {operation} --host {names[0]}` in a terminal.",
            )
        planned_change = PlannedChange(secrets.token_hex(8), operation, names, digest, self._clock(), full_plan)
        with self._lock:
            self._waiting_changes[planned_change.id] = planned_change
            for plan_id in list(self._waiting_changes)[:-MAX_WAITING_PLANS]:
                del self._waiting_changes[plan_id]
        return planned_change

    def apply(
        self, plan_id: str, on_event: OnEvent, raise_if_cancelled: Callable[[], None] = lambda: None
    ) -> RunResult:
        """Make a planned change. Raises Refused if the plan is unknown, was already used, has expired, or is out of date.

        raise_if_cancelled: called before the change is started; an exception prevents it.
        """
        with self._lock:
            planned_change = self._waiting_changes.pop(plan_id, None)
            was_used = plan_id in self._used_ids
            if planned_change:
                self._used_ids.add(plan_id)
        fix = "Plan it again, and show the new plan."
        if planned_change is None:
            reason = "was already used" if was_used else "is unknown"
            raise Refused(f"the plan {plan_id} {reason}; a plan is valid for one change.", fix=fix)
        if self._clock() - planned_change.planned_s > PLAN_LIFETIME_S:
            raise Refused(f"the plan {plan_id} is older than {PLAN_LIFETIME_S / 60:g} minutes.", fix=fix)
        if self._digest_files() != planned_change.digest.partition(":")[0]:
            raise Refused(f"the project's files have changed since the plan {plan_id} was made.", fix=fix)
        if self._plan_now(planned_change.operation, planned_change.hosts, on_event)[0] != planned_change.digest:
            raise Refused(f"the plan {plan_id} is out of date: the hosts have changed since it was made.", fix=fix)
        raise_if_cancelled()
        return follow_run(self._run(planned_change.operation, planned_change.hosts), on_event)

    def _plan_now(
        self, operation: Operation, hosts: tuple[str, ...], on_event: OnEvent
    ) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Return the digest of a new plan (see `PlannedChange`), and the plan's changes. Raises the error of a failing host."""
        files_digest = self._digest_files()
        result = follow_run(self._run(operation, hosts, check=True, diff=True), on_event).check()
        if result.exit is Exit.OK:
            return f"{files_digest}:", ()
        plan = tuple(
            {"host": task.host, "task": task.name, "diff": [asdict(change) for change in task.diff]}
            for task in result.changes
        )
        text = json.dumps([operation, hosts, plan], sort_keys=True, default=str)
        return f"{files_digest}:{hashlib.sha256(text.encode()).hexdigest()}", plan

    def _run(self, operation: Operation, hosts: tuple[str, ...], **options: Unpack[Options]) -> Run:
        return self._fleet.run_playbook(operation, ",".join(hosts), **options)

    def _digest_files(self) -> str:
        try:
            return plan_cache.input_digest(self._fleet.root)
        except (OSError, ValueError) as error:
            raise Refused(f"the project's files can't be read: {error}.", where=str(self._fleet.root)) from None


def follow_run(run: Run, on_event: OnEvent) -> RunResult:
    """Return the result of a run. on_event: called with each of its events; an exception closes the connections."""
    with run:
        for event in run:
            on_event(event)
        return run.result()

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
LASTS_S = 600.0
#: limit on the plans that wait for confirmation, beyond which the oldest are dropped
MOST = 50

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Planned:
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
    shown: dict[str, Any]


class Changes:
    """The plans of one MCP server.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._waiting: dict[str, Planned] = {}
        self._used: set[str] = set()
        self._lock = threading.Lock()

    def plan(self, operation: Operation, hosts: str, on_event: OnEvent) -> Planned | None:
        """Plan an operation as it would run now.

        Returns:
            The plan, whose id may be confirmed; None if there is nothing to do.

        Raises:
            Refused: the plan does not fit into an answer, so it could not be shown completely under its id.
            SparkwrightError: a host would refuse, or is unreachable.
        """
        names = tuple(host.host for host in self._fleet.hosts(hosts))
        digest, plan = self._now(operation, names, on_event)
        if not plan:
            return None
        shown = output.complete("plan", plan)
        if shown is None:
            raise Refused(
                f"the plan has more than {output.ANSWER:,} characters, which no answer shows as a whole.",
                fix=f"Plan fewer hosts at a time, or run `sparkwright {operation} --host {names[0]}` in a terminal.",
            )
        planned = Planned(secrets.token_hex(8), operation, names, digest, self._clock(), plan, shown)
        with self._lock:
            self._waiting[planned.id] = planned
            for id in list(self._waiting)[:-MOST]:
                del self._waiting[id]
        return planned

    def apply(self, id: str, on_event: OnEvent) -> RunResult:
        """Make a change. Raises Refused for a plan that is unknown, was already used, is too old, or is out of date."""
        with self._lock:
            planned = self._waiting.pop(id, None)
            used = id in self._used
            self._used.add(id) if planned else None
        again = "Plan it again, and show the new plan."
        if planned is None:
            why = "was used already" if used else "is unknown"
            raise Refused(f"the plan {id} {why}; a plan is for one change.", fix=again)
        if self._clock() - planned.planned_s > LASTS_S:
            raise Refused(f"the plan {id} is older than {LASTS_S / 60:g} minutes.", fix=again)
        if self._files() != planned.digest.partition(":")[0]:
            raise Refused(f"the project's files changed since the plan {id} was made.", fix=again)
        if self._now(planned.operation, planned.hosts, on_event)[0] != planned.digest:
            raise Refused(f"the plan {id} is out of date: the hosts are not as they were when it was made.", fix=again)
        return _followed(self._run(planned.operation, planned.hosts), on_event)

    def _now(
        self, operation: Operation, hosts: tuple[str, ...], on_event: OnEvent
    ) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Return the digest of a current plan, and its tasks with changes. Raises the error of a host that refuses."""
        files = self._files()
        result = _followed(self._run(operation, hosts, check=True, diff=True), on_event).check()
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

    def _files(self) -> str:
        try:
            return plan_cache.inputs(self._fleet.root)
        except (OSError, ValueError) as error:
            raise Refused(f"the project's files can't be read: {error}.", where=str(self._fleet.root)) from None


def _followed(run: Run, on_event: OnEvent) -> RunResult:
    for event in run:
        on_event(event)
    return run.result()

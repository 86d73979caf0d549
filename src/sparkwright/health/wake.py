"""The service that wakes servers on request: it reads at the gateways who was asked for, and switches by the kept plan.

A switch is `invoke switch` without a laptop, by the plan that the last deploy left: under the host's lock, with the same proofs.
A gateway only says how long ago a model was asked for; which servers may be woken, when and how is decided here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright import host_side
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.health import heal
from sparkwright.health.wake_decision import Decision, Situation, Sleeper, decide, needs
from sparkwright.host.gateway import own_key, server_operations
from sparkwright.host.gateway.server_operations import Gateway, Unheard
from sparkwright.host.memory import host_lost
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, history, restart_plans, turns
from sparkwright.host.records.wakes import Failure, WakeRecord
from sparkwright.host.runs import journal, lock
from sparkwright.host.state import StateFolder
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.secret import Secret

#: seconds between two looks at the gateways
POLL_S = 5.0
#: the same while no server of this machine may be woken, or the state can't be read
IDLE_S = 30.0
WHO = "the wake service"
SWITCHED = "switched"


@dataclass
class Waker:
    """Wakes the servers of one machine on request."""

    context: Context
    #: runs the plan of a switch
    run_plan: heal.RunPlan
    #: the clock, seconds since the epoch; tests replace it
    now: Callable[[], float] = time.time
    #: requests for the awake server, by gateway and model, at the last look; and the time of the last one
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    used_s: float = 0.0
    #: the run of the last verification, by server whose switch was measured
    measured: dict[str, str] = field(default_factory=dict)

    def poll(self) -> bool:
        """Read the gateways once, and switch if that is due. Return True if a request may wake a server of this machine."""
        state, now_s = self.context.state, self.now()
        record = WakeRecord.of(state)
        names = turns.names(state)
        servers = {
            folder.server: folder for folder in state.servers() if folder.server in names and restart_plans.wake(folder)
        }
        sleepers = {name: self._sleeper(folder, record) for name, folder in servers.items()}
        awake = turns.awake(state)
        if awake not in servers or not any(sleeper.on_request for sleeper in sleepers.values()):
            WakeRecord(took_s=record.took_s).save(state)
            return False
        if record.woken not in ("", awake):  # somebody switched by hand
            record.home = record.woken = ""
        awake_s = max(float((state.read(turns.NAME) or {}).get("since") or 0), sleepers[awake].verified_s)
        situation = Situation(sleepers, awake, awake_s, busy=self._busy())
        decision = self._cut_off(record, situation)
        if not decision.server:
            ages_s = self._reported(servers, awake, needs(situation, record, now_s), now_s)
            used_s = self._used(servers[awake], now_s)
            situation = replace(
                situation, asked_s={name: now_s - age_s for name, age_s in ages_s.items()}, used_s=used_s
            )
            decision = decide(situation, record, now_s)
        record.messages = dict(decision.messages)
        record.save(state)
        if decision.server:
            self._switch(servers, awake, decision, record)
        return True

    def _sleeper(self, folder: StateFolder, record: WakeRecord) -> Sleeper:
        about, good = restart_plans.wake(folder), good_states.last(folder)
        numbers = (about["sleep_after_s"], about["stay_awake_s"], self._took_s(folder, good, record))
        why_not = ""
        try:
            self._plan(folder)
        except Refused as error:
            why_not = error.message.rstrip(".")
        return Sleeper(folder.server, float(good.get("since") or 0), about["on_request"], *numbers, why_not=why_not)

    def _took_s(self, folder: StateFolder, good: Mapping[str, Any], record: WakeRecord) -> float:
        """Return the duration of the last switch to a server, by its run; 0 if none is known."""
        if self.measured.get(folder.server) != good.get("run"):
            self.measured[folder.server] = str(good.get("run"))
            run = next((row.get("run") for row in history.read(folder) if row.get("what") == SWITCHED), None)
            recap = journal.recap_of(folder.path / "runs" / str(run)) or {}
            record.took_s[folder.server] = float(recap.get("seconds") or record.took_s.get(folder.server, 0))
        return record.took_s.get(folder.server, 0.0)

    @staticmethod
    def _plan(folder: StateFolder) -> tuple[Plan, dict[str, Secret]]:
        """Return the plan of a switch to a server, and its secrets. Raises Refused if there is none that may run."""
        if lost := host_lost.forbids(folder, good_states.last(folder).get("spec") or {}):
            raise Refused(lost)
        plan = restart_plans.usable_switch(folder, host_side.content_hash())
        return plan, heal.keys_of(folder, plan)

    def _busy(self) -> str:
        owner, alive = lock.inspect(self.context.state)
        return str(owner) if owner is not None and alive else ""

    def _cut_off(self, record: WakeRecord, now: Situation) -> Decision:
        """Return the decision to finish a switch of this service that was killed; it counts as one that failed."""
        if not record.begun or now.busy:
            return Decision()
        server, record.begun = record.begun, ""
        if now.awake != server or journal.recap_of(self.context.state.path / "runs" / record.run) is not None:
            return Decision()
        self._failed(record, server, f"run {record.run} was cut off")
        again = record.failures[server].count < 2
        return Decision(server, f"run {record.run} was cut off") if again else Decision()

    # -- the gateways ----------------------------------------------------------------------------------------------------

    def _reported(
        self, servers: Mapping[str, StateFolder], awake: str, seconds: Mapping[str, int], now_s: float
    ) -> dict[str, float]:
        """Report the sleeping servers to their gateways. Return how long ago each was asked for, for those that were."""
        found = dict[str, float]()
        key = own_key.kept(self.context.state)
        for name, needs_s in seconds.items():
            for gateway in _gateways(servers[name]):
                with suppress(Unheard):
                    for row in server_operations.servers(gateway, key):
                        age_s = server_operations.report_asleep(gateway, key, row, needs_s)
                        if age_s is not None:
                            found[name] = min(age_s, found.get(name, age_s))
        return found

    def _used(self, folder: StateFolder, now_s: float) -> float:
        """Return when the server that is awake last had a request; a gateway that does not answer counts as one."""
        key, counted = own_key.kept(self.context.state), dict[tuple[str, str], int]()
        busy = False
        for gateway in _gateways(folder):
            try:
                for row in server_operations.servers(gateway, key):
                    counted[gateway.name, row.backend] = row.requests
                    busy = busy or row.running > 0
            except Unheard:
                busy = True
        if busy or counted != self.counted:
            self.counted, self.used_s = counted, now_s
        return self.used_s

    @contextmanager
    def _reporting(self, servers: Mapping[str, StateFolder], server: str, took_s: float) -> Iterator[None]:
        """Report the server that is being woken for as long as the block runs, with the seconds that are left."""
        ended, started_s = threading.Event(), time.monotonic()

        def report() -> None:
            while not ended.wait(POLL_S):
                left_s = max(POLL_S, took_s - (time.monotonic() - started_s)) if took_s else 0
                with suppress(SparkwrightError, OSError):
                    self._reported(servers, "", {server: round(left_s)}, self.now())

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # -- the switch ------------------------------------------------------------------------------------------------------

    def _switch(self, servers: Mapping[str, StateFolder], awake: str, decision: Decision, record: WakeRecord) -> None:
        """Switch to a server by its kept plan, and record how that ended."""
        server, state = decision.server, self.context.state
        plan, secrets = self._plan(servers[server])
        checked = {restart_plans.CHECK: {"why": decision.why}}
        plan = replace(plan, run_id=new_run_id(), who=WHO, registered=checked)
        record.begun, record.run = server, plan.run_id
        record.save(state)
        self.context.note(f"switching to {server} (run {plan.run_id}): {decision.why}")
        with self._reporting(servers, server, record.took_s.get(server, 0.0)):
            recap = self.run_plan(self.context, plan, secrets)
        record.begun = ""
        if recap["failed"] and recap.get("exit") == Exit.REFUSED and self._busy():
            record.save(state)  # another run took the lock first: nothing was tried
            return
        if recap["failed"]:
            self._failed(record, server, f"{recap['msg']} (run {plan.run_id})")
        else:
            self._succeeded(record, server, awake)
        record.messages = {}
        record.save(state)
        self.context.note(f"{server}: {recap['msg'] or 'switched'}")

    def _succeeded(self, record: WakeRecord, server: str, awake: str) -> None:
        record.failures.pop(server, None)
        home = record.home if record.woken else awake
        record.home, record.woken = (home, server) if server not in (home, "") else ("", "")
        self.counted, self.used_s = {}, self.now()

    def _failed(self, record: WakeRecord, server: str, why: str) -> None:
        before = record.failures.get(server)
        record.failures[server] = Failure(before.count + 1 if before else 1, self.now(), why[:500])


def _gateways(folder: StateFolder) -> Iterator[Gateway]:
    """Yield the gateways in front of a server, as its plan was compiled with."""
    rows: list[dict[str, Any]] = restart_plans.wake(folder)["gateways"]
    for row in rows:
        with suppress(KeyError, TypeError, ValueError):
            yield Gateway.of(row)

"""Waking servers on request: deciding whose turn it is, and the service that polls the gateways for requests."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright import host_side, units
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.health import heal
from sparkwright.host.gateway import server_operations
from sparkwright.host.gateway.server_operations import Gateway, GatewayError
from sparkwright.host.memory import host_lost
from sparkwright.host.module import Context
from sparkwright.host.records import history, restart_plans, turns, verified_states
from sparkwright.host.records.turns import SwitchFailure, WakeRecord
from sparkwright.host.runs import journal, lock
from sparkwright.host.state import StateFolder
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.secret import Secret

#: how long after a failed switch requests can't start another one to the same server, in seconds; and the number of
#: consecutive failures after which a person must act
RETRY_PAUSE_S, MAX_FAILURES = 1800.0, 2
#: how long a request counts at least, in seconds; longer while the awake server keeps its turn
MIN_REQUEST_VALIDITY_S = 60.0
TIME_FORMAT = "%H:%M:%S"


@dataclass(frozen=True, slots=True)
class TurnServer:
    """A server that takes turns, in the state of its last verification."""

    #: name of the container
    name: str
    #: time of the last verification, in seconds since the epoch
    verified_s: float
    on_request: bool = False
    sleep_after_s: float = 0.0
    stay_awake_s: float = 0.0
    #: duration of the last switch to it; 0 if unknown
    took_s: float = 0.0
    #: reason why no switch to it can start; empty if one can
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """The servers that take turns on a machine, and the requests for them."""

    servers: Mapping[str, TurnServer]
    #: name of the server whose turn it is, and the time since which it has been awake
    awake: str
    awake_s: float
    #: time of the last request, by sleeping server
    asked_s: Mapping[str, float] = field(default_factory=dict)
    #: time of the last request to the awake server
    used_s: float = math.inf
    #: the run that holds the host's lock
    busy: str = ""

    @property
    def until_s(self) -> float:
        """The time until which the awake server keeps its turn."""
        awake = self.servers.get(self.awake)
        return self.awake_s + awake.stay_awake_s if awake else 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision after polling the gateways."""

    #: the server to switch to; empty for none
    server: str = ""
    #: reason for the history
    why: str = ""
    #: a sentence for status, by server
    messages: Mapping[str, str] = field(default_factory=dict)


def wake_delays_s(situation: Situation, record: WakeRecord, now_s: float) -> dict[str, int]:
    """Return the number of seconds until each server that requests may wake could be awake; 0 if no switch was measured.

    Servers that requests can't wake are left out.
    """
    delays_s = {}
    for server in _list_asleep(situation):
        ready_s = _earliest_wake_s(server, situation, record)
        if not server.why_not and ready_s < math.inf:
            delays_s[server.name] = math.ceil(max(0.0, ready_s - now_s) + server.took_s) if server.took_s else 0
    return delays_s


def decide(situation: Situation, record: WakeRecord, now_s: float) -> Decision:
    """Decide whose turn it is: the server that was requested first, or else the one that the now idle server replaced."""
    messages = {server.name: _describe_turn(server, situation, record, now_s) for server in _list_asleep(situation)}
    requested = [server for server in _list_asleep(situation) if _is_requested(server, situation, record, now_s)]
    ready = [
        server for server in requested if _earliest_wake_s(server, situation, record) <= now_s and not server.why_not
    ]
    if ready and not situation.busy:
        first = min(ready, key=lambda server: situation.asked_s[server.name])
        return Decision(first.name, "requested at the gateway", messages)
    awake, home = situation.servers.get(situation.awake), situation.servers.get(record.home)
    if not awake or not home or record.woken != situation.awake or not awake.sleep_after_s:
        return Decision(messages=messages)
    after = f"after {units.format_rough_duration(awake.sleep_after_s)} without a request"
    messages[awake.name] = f"a request woke it; {home.name} is awake again {after}"
    if home.why_not or _next_attempt_s(home, record) > now_s:
        messages[awake.name] = (
            f"a request woke it, and {home.name} can't be woken again: {_describe_obstacle(home, record)}"
        )
    elif now_s - situation.used_s >= awake.sleep_after_s and now_s >= situation.until_s and not situation.busy:
        return Decision(
            home.name,
            f"{awake.name}, which a request woke, had none for {units.format_rough_duration(now_s - situation.used_s)}",
            messages,
        )
    return Decision(messages=messages)


def _list_asleep(situation: Situation) -> Iterator[TurnServer]:
    """Yield the sleeping servers that requests may wake."""
    return (server for server in situation.servers.values() if server.on_request and server.name != situation.awake)


def _is_requested(server: TurnServer, situation: Situation, record: WakeRecord, now_s: float) -> bool:
    """Return True if this server was requested after it was last awake and after the last attempt to wake it."""
    asked_s = situation.asked_s.get(server.name, -math.inf)
    awake = situation.servers.get(situation.awake)
    valid_s = max(MIN_REQUEST_VALIDITY_S, awake.stay_awake_s if awake else 0.0)
    return asked_s > max(server.verified_s, _last_failure(server, record).time_s) and now_s - asked_s <= valid_s


def _last_failure(server: TurnServer, record: WakeRecord) -> SwitchFailure:
    """Return the failures since the server was last verified."""
    failure = record.failures.get(server.name)
    return failure if failure and failure.time_s > server.verified_s else SwitchFailure(0, 0.0, "")


def _next_attempt_s(server: TurnServer, record: WakeRecord) -> float:
    """Return the earliest time for another attempt to switch to this server."""
    failure = _last_failure(server, record)
    if failure.count >= MAX_FAILURES:
        return math.inf
    return failure.time_s + RETRY_PAUSE_S if failure.count else 0.0


def _earliest_wake_s(server: TurnServer, situation: Situation, record: WakeRecord) -> float:
    """Return the earliest time at which a request may wake this server."""
    return max(situation.until_s, _next_attempt_s(server, record))


def _describe_obstacle(server: TurnServer, record: WakeRecord) -> str:
    failure = _last_failure(server, record)
    tried = f"the last try at {_format_time(failure.time_s)} failed: {failure.why}"
    return server.why_not or (
        f"{failure.count} tries in a row failed, {tried}" if failure.count >= MAX_FAILURES else tried
    )


def _describe_turn(server: TurnServer, situation: Situation, record: WakeRecord, now_s: float) -> str:
    pause_s = _next_attempt_s(server, record)
    if server.why_not or pause_s == math.inf:
        return f"no request wakes it: {_describe_obstacle(server, record)}"
    if pause_s > now_s:
        return f"no request wakes it until {_format_time(pause_s)}: {_describe_obstacle(server, record)}"
    if not _is_requested(server, situation, record, now_s):
        duration = f" in {units.format_rough_duration(server.took_s)}" if server.took_s else ""
        return f"a request wakes it{duration}"
    requested = f"asked for at {_format_time(situation.asked_s[server.name])}"
    if situation.until_s > now_s:
        return f"{requested}; {situation.awake} keeps its turn until {_format_time(situation.until_s)}"
    return f"{requested}; waits for {situation.busy}" if situation.busy else f"{requested}; it is woken now"


def _format_time(time_s: float) -> str:
    return units.format_time(time_s, TIME_FORMAT)


# The service that wakes servers on request: it polls the gateways for requests, and switches with the saved plan.
#
# A switch is `invoke switch` without a laptop, using the plan that the last deploy saved, under the host's lock and with
# the same verification. A gateway only reports how long ago a model was requested; which servers may be woken, when and
# how, is decided here.


#: interval of polling the gateways, in seconds
POLL_INTERVAL_S = 5.0
#: the interval while no server on this machine may be woken, or while the state can't be read
IDLE_INTERVAL_S = 30.0
ACTOR = "the wake service"
SWITCH_EVENT = "switched"


@dataclass
class Waker:
    """Wakes the servers of one machine on request."""

    context: Context
    #: runs the plan of a switch
    run_plan: heal.RunPlan
    #: returns the time in seconds since the epoch; replaced in tests
    now: Callable[[], float] = time.time
    #: requests for the awake server at the last poll, by gateway and model
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    used_s: float = 0.0
    #: run of the last verification, by server whose switch was measured
    measured: dict[str, str] = field(default_factory=dict)

    def poll(self) -> bool:
        """Poll the gateways once, and switch if due. Return True if a request may wake a server on this machine."""
        state, now_s = self.context.state, self.now()
        record = WakeRecord.load(state)
        names = turns.list_servers(state)
        servers = {
            folder.server: folder
            for folder in state.servers()
            if folder.server in names and restart_plans.read_wake(folder)
        }
        sleepers = {name: self._build_server(folder, record) for name, folder in servers.items()}
        awake = turns.awake_server(state)
        if awake not in servers or not any(sleeper.on_request for sleeper in sleepers.values()):
            WakeRecord(took_s=record.took_s).save(state)
            return False
        if record.woken not in ("", awake):  # it was switched by hand
            record.home = record.woken = ""
        awake_s = max(float((state.read(turns.RECORD_NAME) or {}).get("since") or 0), sleepers[awake].verified_s)
        situation = Situation(sleepers, awake, awake_s, busy=self._describe_active_run())
        decision = self._resume_cut_off(record, situation)
        if not decision.server:
            ages_s = self._report_asleep(servers, awake, wake_delays_s(situation, record, now_s), now_s)
            used_s = self._poll_last_use(servers[awake], now_s)
            situation = replace(
                situation, asked_s={name: now_s - age_s for name, age_s in ages_s.items()}, used_s=used_s
            )
            decision = decide(situation, record, now_s)
        record.messages = dict(decision.messages)
        record.save(state)
        if decision.server:
            self._switch(servers, awake, decision, record)
        return True

    def _build_server(self, folder: StateFolder, record: WakeRecord) -> TurnServer:
        wake_settings, good = restart_plans.read_wake(folder), verified_states.load_last(folder)
        numbers = (
            wake_settings["sleep_after_s"],
            wake_settings["stay_awake_s"],
            self._switch_duration_s(folder, good, record),
        )
        why_not = ""
        try:
            self._load_plan(folder)
        except Refused as error:
            why_not = error.message.rstrip(".")
        return TurnServer(
            folder.server, float(good.get("since") or 0), wake_settings["on_request"], *numbers, why_not=why_not
        )

    def _switch_duration_s(self, folder: StateFolder, good: Mapping[str, Any], record: WakeRecord) -> float:
        """Return the duration of the last switch to a server according to its run; 0 if unknown."""
        if self.measured.get(folder.server) != good.get("run"):
            self.measured[folder.server] = str(good.get("run"))
            run = next((row.get("run") for row in history.read(folder) if row.get("what") == SWITCH_EVENT), None)
            recap = journal.read_recap(folder.path / "runs" / str(run)) or {}
            record.took_s[folder.server] = float(recap.get("seconds") or record.took_s.get(folder.server, 0))
        return record.took_s.get(folder.server, 0.0)

    @staticmethod
    def _load_plan(folder: StateFolder) -> tuple[Plan, dict[str, Secret]]:
        """Return the plan of a switch to a server, and its secrets. Raises Refused if there is no valid one."""
        if lost := host_lost.forbidden_reason(folder, verified_states.load_last(folder).get("spec") or {}):
            raise Refused(lost)
        plan = restart_plans.load_usable_switch(folder, host_side.content_hash())
        return plan, heal.load_plan_secrets(folder, plan)

    def _describe_active_run(self) -> str:
        owner, alive = lock.inspect(self.context.state)
        return str(owner) if owner is not None and alive else ""

    def _resume_cut_off(self, record: WakeRecord, situation: Situation) -> Decision:
        """Return the decision to complete a switch of this service that was killed, which counts as a failure."""
        if not record.begun or situation.busy:
            return Decision()
        server, record.begun = record.begun, ""
        if situation.awake != server or journal.read_recap(self.context.state.path / "runs" / record.run) is not None:
            return Decision()
        self._record_failure(record, server, f"run {record.run} was cut off")
        may_retry = record.failures[server].count < 2
        return Decision(server, f"run {record.run} was cut off") if may_retry else Decision()

    # -- the gateways ----------------------------------------------------------------------------------------------------

    def _report_asleep(
        self, servers: Mapping[str, StateFolder], awake: str, seconds: Mapping[str, int], now_s: float
    ) -> dict[str, float]:
        """Report the sleeping servers to their gateways, and return the times of the last requests for them."""
        ages_s = dict[str, float]()
        key = server_operations.load_key(self.context.state)
        for name, needs_s in seconds.items():
            for gateway in _gateways(servers[name]):
                with suppress(GatewayError):
                    for row in server_operations.list_servers(gateway, key):
                        age_s = server_operations.report_asleep(gateway, key, row, needs_s)
                        if age_s is not None:
                            ages_s[name] = min(age_s, ages_s.get(name, age_s))
        return ages_s

    def _poll_last_use(self, folder: StateFolder, now_s: float) -> float:
        """Return the time of the awake server's last request, which is now if a gateway does not answer."""
        key, counted = server_operations.load_key(self.context.state), dict[tuple[str, str], int]()
        busy = False
        for gateway in _gateways(folder):
            try:
                for row in server_operations.list_servers(gateway, key):
                    counted[gateway.name, row.backend] = row.requests
                    busy = busy or row.running > 0
            except GatewayError:
                busy = True
        if busy or counted != self.counted:
            self.counted, self.used_s = counted, now_s
        return self.used_s

    @contextmanager
    def _keep_reporting(self, servers: Mapping[str, StateFolder], server: str, took_s: float) -> Iterator[None]:
        """Report the server that is being woken, with the remaining seconds, for the duration of the block."""
        ended, started_s = threading.Event(), time.monotonic()

        def report() -> None:
            while not ended.wait(POLL_INTERVAL_S):
                left_s = max(POLL_INTERVAL_S, took_s - (time.monotonic() - started_s)) if took_s else 0
                with suppress(SparkwrightError, OSError):
                    self._report_asleep(servers, "", {server: round(left_s)}, self.now())

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # -- the switch ------------------------------------------------------------------------------------------------------

    def _switch(self, servers: Mapping[str, StateFolder], awake: str, decision: Decision, record: WakeRecord) -> None:
        """Switch to a server with its saved plan, and record the outcome."""
        server, state = decision.server, self.context.state
        plan, secrets = self._load_plan(servers[server])
        registered = {restart_plans.CHECK_RESULT: {"why": decision.why}}
        plan = replace(plan, run_id=new_run_id(), who=ACTOR, registered=registered)
        record.begun, record.run = server, plan.run_id
        record.save(state)
        self.context.note(f"switching to {server} (run {plan.run_id}): {decision.why}")
        with self._keep_reporting(servers, server, record.took_s.get(server, 0.0)):
            recap = self.run_plan(self.context, plan, secrets)
        record.begun = ""
        if recap["failed"] and recap.get("exit") == Exit.REFUSED and self._describe_active_run():
            record.save(state)  # another run took the lock first, so nothing was attempted
            return
        if recap["failed"]:
            self._record_failure(record, server, f"{recap['msg']} (run {plan.run_id})")
        else:
            self._record_success(record, server, awake)
        record.messages = {}
        record.save(state)
        self.context.note(f"{server}: {recap['msg'] or 'switched'}")

    def _record_success(self, record: WakeRecord, server: str, awake: str) -> None:
        record.failures.pop(server, None)
        home = record.home if record.woken else awake
        record.home, record.woken = (home, server) if server not in (home, "") else ("", "")
        self.counted, self.used_s = {}, self.now()

    def _record_failure(self, record: WakeRecord, server: str, why: str) -> None:
        before = record.failures.get(server)
        record.failures[server] = SwitchFailure(before.count + 1 if before else 1, self.now(), why[:500])


def _gateways(folder: StateFolder) -> Iterator[Gateway]:
    """Yield the gateways in front of a server that its plan was compiled with."""
    rows: list[dict[str, Any]] = restart_plans.read_wake(folder)["gateways"]
    for row in rows:
        with suppress(KeyError, TypeError, ValueError):
            yield Gateway.from_json(row)

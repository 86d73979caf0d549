"""Wake servers on request: the decision whether to switch, and the service that polls the gateways for requests."""

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
from sparkwright.gateway.wake import DEFAULT_RETRY_S
from sparkwright.health import heal
from sparkwright.host.gateway import server_operations
from sparkwright.host.gateway.server_operations import Gateway, GatewayError
from sparkwright.host.memory import host_outage
from sparkwright.host.module import Context
from sparkwright.host.records import history, restart_plans, turns, verified_states
from sparkwright.host.records.turns import SwitchFailure, WakeRecord
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.runs import journal, lock
from sparkwright.host.state import StateFolder
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.secret import Secret

#: time after a failed switch during which requests do not start another switch to the same server, in seconds
RETRY_PAUSE_S = 1800.0
#: number of consecutive failures after which requests do not wake a server
MAX_FAILURES = 2
#: how long a request is valid, in seconds; longer if the awake server's minimum turn is longer or ends later
MIN_REQUEST_VALIDITY_S = 60.0
TIME_FORMAT = "%H:%M:%S"
#: interval between polls of the gateways, in seconds
POLL_INTERVAL_S = 5.0
#: interval between polls while requests may not wake any server on this machine or the state can't be read, in seconds
IDLE_INTERVAL_S = 30.0
ACTOR = "the wake service"
SWITCH_EVENT = "switched"


@dataclass(frozen=True, slots=True)
class TurnServer:
    """A server that takes turns with others."""

    #: name of the container
    name: str
    #: time of the last verification, in seconds since the epoch
    verified_s: float
    #: True if requests may wake the server
    on_request: bool = False
    #: idle time in seconds after which the server that this one replaced is woken again; 0 for never
    sleep_after_s: float = 0.0
    #: minimum duration of a turn, in seconds
    stay_awake_s: float = 0.0
    #: duration of the last switch to this server, in seconds; 0 if unknown
    switch_s: float = 0.0
    #: reason why no switch to this server can start; empty if there is none
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """The servers that take turns on a machine, and the requests for them."""

    servers: Mapping[str, TurnServer]
    #: name of the awake server
    awake_name: str
    #: start of the awake server's turn, in seconds since the epoch
    awake_since_s: float
    #: time of the last request, by sleeping server
    request_times_s: Mapping[str, float] = field(default_factory=dict)
    #: time of the last request to the awake server
    last_used_s: float = math.inf
    #: the run that holds the host's lock; empty if there is none
    active_run: str = ""

    @property
    def turn_end_s(self) -> float:
        """End of the awake server's minimum turn, in seconds since the epoch."""
        awake_server = self.servers.get(self.awake_name)
        return self.awake_since_s + awake_server.stay_awake_s if awake_server else 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision after polling the gateways."""

    #: the server to switch to; empty for no switch
    server: str = ""
    #: reason for the switch, for the history
    reason: str = ""
    #: message about a server's turn for `status`, by server
    messages: Mapping[str, str] = field(default_factory=dict)


def wake_delays_s(situation: Situation, record: WakeRecord, now_s: float) -> dict[str, int]:
    """Return how many seconds after a request each sleeping server would be awake.

    The delay is 0 if the switch could begin at once and none has been measured. Servers that requests can't wake are omitted.
    """
    delays_s = {}
    for server in _list_sleeping_servers(situation):
        wait_s = max(0.0, _earliest_wake_s(server, situation, record) - now_s)
        if not server.obstacle and wait_s < math.inf:
            switch_s = server.switch_s or (DEFAULT_RETRY_S if wait_s else 0.0)
            delays_s[server.name] = math.ceil(wait_s + switch_s)
    return delays_s


def decide_switch(situation: Situation, record: WakeRecord, now_s: float) -> Decision:
    """Decide whether to switch to the server requested first, or back from an idle server to the one that it replaced."""
    messages = {
        server.name: _describe_turn(server, situation, record, now_s) for server in _list_sleeping_servers(situation)
    }
    ready_servers = [
        server
        for server in _list_sleeping_servers(situation)
        if _is_requested(server, situation, record, now_s)
        and _earliest_wake_s(server, situation, record) <= now_s
        and not server.obstacle
    ]
    if ready_servers and not situation.active_run:
        first_server = min(ready_servers, key=lambda server: situation.request_times_s[server.name])
        return Decision(first_server.name, "requested at the gateway", messages)
    awake_server, home_server = situation.servers.get(situation.awake_name), situation.servers.get(record.home)
    if not awake_server or not home_server or record.woken != situation.awake_name or not awake_server.sleep_after_s:
        return Decision(messages=messages)
    idle_duration = f"{units.format_rough_duration(awake_server.sleep_after_s)} without a request"
    messages[awake_server.name] = f"woken by a request; {home_server.name} will be woken again after {idle_duration}"
    if home_server.obstacle or _next_attempt_s(home_server, record) > now_s:
        messages[awake_server.name] = (
            f"woken by a request; {home_server.name} can't be woken again: {_describe_obstacle(home_server, record)}"
        )
    elif (
        now_s - situation.last_used_s >= awake_server.sleep_after_s
        and now_s >= situation.turn_end_s
        and not situation.active_run
    ):
        idle_duration = units.format_rough_duration(now_s - situation.last_used_s)
        return Decision(
            home_server.name, f"{awake_server.name}, woken by a request, was idle for {idle_duration}", messages
        )
    return Decision(messages=messages)


def _list_sleeping_servers(situation: Situation) -> Iterator[TurnServer]:
    """Yield the sleeping servers that requests may wake."""
    return (
        server for server in situation.servers.values() if server.on_request and server.name != situation.awake_name
    )


def _is_requested(server: TurnServer, situation: Situation, record: WakeRecord, now_s: float) -> bool:
    """Return True if this server has a valid request since its last turn and since the last failed switch to it."""
    requested_s = situation.request_times_s.get(server.name, -math.inf)
    awake_server = situation.servers.get(situation.awake_name)
    end_s = requested_s + max(MIN_REQUEST_VALIDITY_S, awake_server.stay_awake_s if awake_server else 0.0)
    if awake_server and requested_s >= situation.awake_since_s - awake_server.switch_s:
        # requested during the switch to the awake server or since, so it waits for the end of that server's turn
        end_s = max(end_s, situation.turn_end_s + MIN_REQUEST_VALIDITY_S)
    return requested_s > max(server.verified_s, _last_failure(server, record).time_s) and now_s <= end_s


def _last_failure(server: TurnServer, record: WakeRecord) -> SwitchFailure:
    """Return the failed switches to this server since it was last verified; the count is 0 if there were none."""
    failure = record.failures.get(server.name)
    return failure if failure and failure.time_s > server.verified_s else SwitchFailure(0, 0.0, "")


def _next_attempt_s(server: TurnServer, record: WakeRecord) -> float:
    """Return the earliest time for another attempt to switch to this server; infinity after MAX_FAILURES."""
    failure = _last_failure(server, record)
    if failure.count >= MAX_FAILURES:
        return math.inf
    return failure.time_s + RETRY_PAUSE_S if failure.count else 0.0


def _earliest_wake_s(server: TurnServer, situation: Situation, record: WakeRecord) -> float:
    """Return the earliest time at which a request may wake this server."""
    return max(situation.turn_end_s, _next_attempt_s(server, record))


def _describe_obstacle(server: TurnServer, record: WakeRecord) -> str:
    failure = _last_failure(server, record)
    message = f"the last attempt at {_format_time(failure.time_s)} failed: {failure.why}"
    if failure.count >= MAX_FAILURES:
        message = f"{failure.count} attempts in a row failed; {message}"
    return server.obstacle or message


def _describe_turn(server: TurnServer, situation: Situation, record: WakeRecord, now_s: float) -> str:
    next_attempt_s = _next_attempt_s(server, record)
    if server.obstacle or next_attempt_s == math.inf:
        return f"a request can't wake it: {_describe_obstacle(server, record)}"
    if next_attempt_s > now_s:
        return f"a request can't wake it until {_format_time(next_attempt_s)}: {_describe_obstacle(server, record)}"
    if not _is_requested(server, situation, record, now_s):
        duration = f" in {units.format_rough_duration(server.switch_s)}" if server.switch_s else ""
        return f"a request wakes it{duration}"
    request_clause = f"requested at {_format_time(situation.request_times_s[server.name])}"
    if situation.turn_end_s > now_s:
        return f"{request_clause}; {situation.awake_name} keeps its turn until {_format_time(situation.turn_end_s)}"
    return f"{request_clause}; {f'waiting for {situation.active_run}' if situation.active_run else 'waking now'}"


def _format_time(time_s: float) -> str:
    return units.format_time(time_s, TIME_FORMAT)


@dataclass
class Waker:
    """The service that wakes the servers of one machine on request.

    It runs the plan that the last deploy saved, as `invoke switch` does but without a laptop, under the host's lock and with the
    same verification. The gateways only report how long ago a model was requested.
    """

    context: Context
    run_plan: heal.RunPlan
    #: returns the time in seconds since the epoch; replaced in tests
    now: Callable[[], float] = time.time
    #: number of requests for the awake server at the last poll, by gateway and backend
    request_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    #: time of the last request for the awake server, in seconds since the epoch
    last_used_s: float = 0.0
    #: run from whose journal the duration of the last switch was read, by server
    measured_runs: dict[str, str] = field(default_factory=dict)

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
        turn_servers = {name: self._build_server(folder, record) for name, folder in servers.items()}
        awake_name = turns.awake_server(state)
        if awake_name not in servers or not any(server.on_request for server in turn_servers.values()):
            WakeRecord(took_s=record.took_s).save(state)
            return False
        if record.woken not in ("", awake_name):  # a user switched manually
            record.home = record.woken = ""
        turn_start_s = float((state.read(turns.RECORD_NAME) or {}).get("since") or 0)
        awake_since_s = max(turn_start_s, turn_servers[awake_name].verified_s)
        situation = Situation(turn_servers, awake_name, awake_since_s, active_run=self._describe_active_run())
        decision = self._resume_interrupted_switch(record, situation)
        if not decision.server:
            ages_s = self._report_sleeping_servers(servers, wake_delays_s(situation, record, now_s))
            situation = replace(
                situation,
                request_times_s={name: now_s - age_s for name, age_s in ages_s.items()},
                last_used_s=self._poll_last_use(servers[awake_name], now_s),
            )
            decision = decide_switch(situation, record, now_s)
        record.messages = dict(decision.messages)
        record.save(state)
        if decision.server:
            self._switch(servers, situation, decision, record)
        return True

    def _build_server(self, folder: StateFolder, record: WakeRecord) -> TurnServer:
        wake_settings, verified_state = restart_plans.read_wake(folder), verified_states.load_last(folder)
        obstacle = ""
        try:
            self._load_plan(folder)
        except Refused as error:
            obstacle = error.message.rstrip(".")
        return TurnServer(
            folder.server,
            verified_s=verified_state.since,
            on_request=wake_settings["on_request"],
            sleep_after_s=wake_settings["sleep_after_s"],
            stay_awake_s=wake_settings["stay_awake_s"],
            switch_s=self._switch_duration_s(folder, verified_state, record),
            obstacle=obstacle,
        )

    def _switch_duration_s(self, folder: StateFolder, verified_state: VerifiedState, record: WakeRecord) -> float:
        """Return the duration of the last switch to a server, in seconds, from the journal of its run; 0 if unknown."""
        if self.measured_runs.get(folder.server) != verified_state.run:
            self.measured_runs[folder.server] = verified_state.run
            run = next((row.get("run") for row in history.read(folder) if row.get("what") == SWITCH_EVENT), None)
            recap = journal.read_recap(folder.path / "runs" / str(run)) or {}
            record.took_s[folder.server] = float(recap.get("seconds") or record.took_s.get(folder.server, 0))
        return record.took_s.get(folder.server, 0.0)

    @staticmethod
    def _load_plan(folder: StateFolder) -> tuple[Plan, dict[str, Secret]]:
        """Return the saved plan of a switch to a server, and its secrets. Raises Refused if it can't be used."""
        if forbidden_reason := host_outage.forbidden_reason(folder, verified_states.load_last(folder).spec):
            raise Refused(forbidden_reason)
        plan = restart_plans.load_usable_switch(folder, host_side.content_hash())
        return plan, heal.load_plan_secrets(folder, plan)

    def _describe_active_run(self) -> str:
        owner, is_alive = lock.inspect(self.context.state)
        return str(owner) if owner is not None and is_alive else ""

    def _resume_interrupted_switch(self, record: WakeRecord, situation: Situation) -> Decision:
        """Return the decision to repeat a switch by this service that was cut off. The interrupted switch counts as a failure."""
        if not record.begun or situation.active_run:
            return Decision()
        server, record.begun = record.begun, ""
        if (
            situation.awake_name != server
            or journal.read_recap(self.context.state.path / "runs" / record.run) is not None
        ):
            return Decision()
        self._record_failure(record, server, f"run {record.run} was cut off")
        may_retry = record.failures[server].count < MAX_FAILURES
        return Decision(server, f"run {record.run} was cut off") if may_retry else Decision()

    # -- the gateways ----------------------------------------------------------------------------------------------------

    def _report_sleeping_servers(
        self, servers: Mapping[str, StateFolder], delays_s: Mapping[str, int]
    ) -> dict[str, float]:
        """Report the sleeping servers to their gateways.

        Args:
            delays_s: number of seconds after which a request would have woken a server, by server.

        Returns:
            The number of seconds since the last request, by requested server.
        """
        ages_s = dict[str, float]()
        key = server_operations.load_key(self.context.state)
        for name, delay_s in delays_s.items():
            for gateway in _load_gateways(servers[name]):
                with suppress(GatewayError):
                    for row in server_operations.list_servers(gateway, key):
                        age_s = server_operations.report_asleep(gateway, key, row, delay_s)
                        if age_s is not None:
                            ages_s[name] = min(age_s, ages_s.get(name, age_s))
        return ages_s

    def _poll_last_use(self, folder: StateFolder, now_s: float) -> float:
        """Return the time of the awake server's last request: now if a gateway does not answer or requests are running."""
        key, counts = server_operations.load_key(self.context.state), dict[tuple[str, str], int]()
        busy = False
        for gateway in _load_gateways(folder):
            try:
                for row in server_operations.list_servers(gateway, key):
                    counts[gateway.name, row.backend] = row.requests
                    busy = busy or row.running > 0
            except GatewayError:
                busy = True
        if busy or counts != self.request_counts:
            self.request_counts, self.last_used_s = counts, now_s
        return self.last_used_s

    @contextmanager
    def _keep_reporting(
        self, servers: Mapping[str, StateFolder], server: str, situation: Situation, record: WakeRecord
    ) -> Iterator[None]:
        """Report the sleeping servers to the gateways while the block wakes one of them.

        The others can be woken when this one has been awake for its minimum turn.
        """
        end_event, started_s, switch_s = threading.Event(), time.monotonic(), situation.servers[server].switch_s

        def report() -> None:
            while not end_event.is_set():
                remaining_s = max(POLL_INTERVAL_S, switch_s - (time.monotonic() - started_s)) if switch_s else 0.0
                now_s = self.now()
                after_switch = replace(situation, awake_name=server, awake_since_s=now_s + remaining_s)
                delays_s = {server: round(remaining_s), **wake_delays_s(after_switch, record, now_s)}
                with suppress(SparkwrightError, OSError):
                    self._report_sleeping_servers(servers, delays_s)
                end_event.wait(POLL_INTERVAL_S)

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end_event.set()
            thread.join()

    # -- the switch ------------------------------------------------------------------------------------------------------

    def _switch(
        self, servers: Mapping[str, StateFolder], situation: Situation, decision: Decision, record: WakeRecord
    ) -> None:
        """Switch to a server with its saved plan, and record the outcome."""
        server, state = decision.server, self.context.state
        plan, secrets = self._load_plan(servers[server])
        registered = {restart_plans.CHECK_RESULT_VARIABLE: {"why": decision.reason}}
        plan = replace(plan, run_id=new_run_id(), who=ACTOR, registered=registered)
        record.begun, record.run = server, plan.run_id
        record.save(state)
        self.context.note(f"switching to {server} (run {plan.run_id}): {decision.reason}")
        with self._keep_reporting(servers, server, situation, record):
            recap = self.run_plan(self.context, plan, secrets)
        record.begun = ""
        if recap["failed"] and recap.get("exit") == Exit.REFUSED and self._describe_active_run():
            record.save(state)  # another run acquired the lock first, so this is not a failed attempt
            return
        if recap["failed"]:
            self._record_failure(record, server, f"{recap['msg']} (run {plan.run_id})")
        else:
            self._record_success(record, server, situation.awake_name)
        record.messages = {}
        record.save(state)
        self.context.note(f"{server}: {recap['msg'] or 'switched'}")

    def _record_success(self, record: WakeRecord, server: str, previous_name: str) -> None:
        record.failures.pop(server, None)
        home_name = record.home if record.woken else previous_name
        record.home, record.woken = (home_name, server) if server not in (home_name, "") else ("", "")
        self.request_counts, self.last_used_s = {}, self.now()

    def _record_failure(self, record: WakeRecord, server: str, reason: str) -> None:
        previous = record.failures.get(server)
        record.failures[server] = SwitchFailure(previous.count + 1 if previous else 1, self.now(), reason[:500])


def _load_gateways(folder: StateFolder) -> Iterator[Gateway]:
    """Yield the gateways in front of a server, from its plan."""
    rows: list[dict[str, Any]] = restart_plans.read_wake(folder)["gateways"]
    for row in rows:
        with suppress(KeyError, TypeError, ValueError):
            yield Gateway.from_json(row)

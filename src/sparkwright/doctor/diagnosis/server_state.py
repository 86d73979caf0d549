"""The observation of a server for a diagnosis, and the table of rules that determines the server's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sparkwright import units
from sparkwright.engines import engine as engines
from sparkwright.engines import http, tasks
from sparkwright.engines.engine import Engine
from sparkwright.engines.log.state import UNKNOWN_READING, EngineState, Reading
from sparkwright.errors import Exit
from sparkwright.health import current_state
from sparkwright.health.judging.observation import Limits
from sparkwright.health.judging.ranks import BACKOFF_RESET_S, MIN_LOOP_RESTARTS
from sparkwright.health.probe import read_rank
from sparkwright.health.record import Container
from sparkwright.health.snapshot import Snapshot
from sparkwright.health.store import CheckHistory
from sparkwright.host.containers import container_labels
from sparkwright.host.module import Context
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.visible import format_count


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """The last exit of a container."""

    #: exit code; None if unknown
    code: int | None = None
    #: seconds since the epoch
    at_s: float | None = None
    out_of_memory: bool = False
    #: reason why Docker could not start it
    error: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A server's answers to a probe."""

    url: str = ""
    #: HTTP status of /health; 0 if nothing answered, None if it was not requested
    health: int | None = None
    #: as in `health.record.Record`, or "ended" if the server exited because of the request
    token: Literal["", "made", "none", "refused", "error", "ended"] = ""
    #: how long the probe waited for a token, in seconds
    waited_s: float = 0.0
    error: str = ""
    #: number of requests in progress, including waiting ones
    running: float | None = None
    #: their total tokens per second
    rate: float | None = None
    #: how long they were running without a token being generated, in seconds
    stalled_s: float | None = None


@dataclass(frozen=True)
class DiagnosisInput:
    """The observation of a server at one moment."""

    #: seconds since the epoch
    now_s: float
    name: str = ""
    #: description of the run that holds the host's lock; empty if no run is in progress
    active_run: str = ""
    #: description of an interrupted run; empty if there is none
    interrupted_run: str = ""
    #: True if a server has ever been verified on this host
    was_verified: bool = False
    #: reason why the Docker Engine did not answer; empty if it did
    engine_error: str = ""
    #: fix for `engine_error`
    engine_fix: str = ""
    container: Container = field(default_factory=Container)
    inspected: Mapping[str, Any] = field(default_factory=dict)
    last_exit: ContainerExit = field(default_factory=ContainerExit)
    #: state from the log of the current start; None if it could not be read
    log: EngineState | None = None
    #: failure in the log of the most recent start that has ended
    failure: Reading = UNKNOWN_READING
    #: last line of that start's log
    last_line: str = ""
    #: reason why the restarts count as a crash loop; empty if they do not
    crash_loop_reason: str = ""
    #: reason why a health check stopped the container's crash loop; empty if it did not
    loop_stop_reason: str = ""
    #: name of the server that is awake instead of this one; empty if this server is not asleep
    awake_server: str = ""
    #: time of the host's last boot, in seconds since the epoch
    booted_s: float | None = None
    #: explanation of the host's last outage; empty if there was none
    host_outage: str = ""
    #: how long a start may take, in seconds
    max_start_s: float = 0.0
    #: how long the last measured start took, in seconds
    ready_s: float | None = None
    port: int | None = None
    #: container or process that uses the port although the container is not running; empty if there is none
    listener: str = ""
    #: differences from the verified state
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    probe: ProbeResult = field(default_factory=ProbeResult)
    #: engine of the container; without a container, of the verified server
    engine: Engine = field(default_factory=lambda: engines.get_engine(engines.DEFAULT_ENGINE))

    @property
    def age_s(self) -> float | None:
        """The time since the container was started, in seconds; None if unknown."""
        return None if self.container.started_s is None else max(0.0, self.now_s - self.container.started_s)


@dataclass(frozen=True)
class RecipeFacts:
    """Facts from the user's files, all optional because a file may be unreadable."""

    #: name of the container
    container: str = ""
    #: the server's URL, if its container does not publish a port
    base_url: str = ""
    model: str = ""
    #: id of the model on the hub
    model_id: str = ""
    #: rate of a single stream that the recipe expects
    tok_per_s: float | None = None
    platform: Literal["gb10", "ascend"] = "gb10"
    #: time limit for a token, in seconds; 0 for the limit of the health checks
    token_s: float = 0.0
    key: str = ""


BadState = Literal["slow", "degraded", "slow start", "wedged", "stalled", "crash-looping", "down"]
State = Literal["ok", "asleep", "busy", "in progress", "starting", "unknown", BadState]

#: exit codes of `diagnose`, by state
EXIT_CODES: dict[State, Exit] = {
    **dict.fromkeys(("ok", "asleep"), Exit.OK),
    **dict.fromkeys(("busy", "in progress", "starting", "unknown"), Exit.INCONCLUSIVE),
    **dict.fromkeys(get_args(BadState), Exit.FAILED),
}

MAX_LINE_CHARS = 200

DEPLOY_FIX = "Run `invoke deploy` to start a server."
RESTART_FIX = "Run `invoke restart`."
LOGS_FIX = "`invoke logs` shows why; `invoke rollback` goes back to the last verified state."
WAKE_FIX = "`invoke switch` wakes it."
WAIT_FIX = "Wait, then try again."


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server."""

    state: State
    #: explanation for the user
    message: str
    #: what the user can do; empty if there is nothing
    fix: str = ""


def evaluate_state(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Return the state of a server that is not serving or can't be measured; None if it generated a token and is idle."""
    state = next((server_state for rule in STATE_RULES if (server_state := rule(server, limits)) is not None), None)
    if not server.active_run:
        return state
    current_message = state.message if state is not None else "/health answers; not measured during the run"
    message = f"in progress: {server.active_run}; {current_message}"
    return ServerState("in progress", message, "Run `invoke diagnose` again when it has finished.")


def is_slow_start(server: DiagnosisInput, limits: Limits) -> bool:
    """Return True if this start takes longer than the last measured start suggests or, without one, than a start may take.

    With a measured start, always False for the first BACKOFF_RESET_S seconds.
    """
    if server.container.status != "running" or server.age_s is None:
        return False
    return server.age_s > (
        max(BACKOFF_RESET_S, limits.ready_factor * server.ready_s) if server.ready_s else server.max_start_s
    )


def _down_state(message: str, fix: str) -> ServerState:
    return ServerState("down", f"no server answers: {message}", fix)


def _check_engine(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Evaluate a server without the Docker Engine, by its port alone. If the port answers, the server is measured anyway."""
    if not server.engine_error or server.probe.health == 200:
        return None
    if server.probe.health is None:
        return ServerState("unknown", f"unknown whether a server is running: {server.engine_error}", server.engine_fix)
    return ServerState("down", f"no server answers at {server.probe.url}: {server.engine_error}", server.engine_fix)


def _check_server_is_known(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    if server.name:
        return None
    return ServerState(
        "unknown", "no server is known: nothing has been deployed, and the host has no recipe", DEPLOY_FIX
    )


def _check_container(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    container = server.container
    if server.engine_error or container.status in ("running", "restarting"):
        return None
    if server.awake_server:
        return ServerState("asleep", f"{container.name} is asleep: it is the turn of {server.awake_server}", WAKE_FIX)
    if container.status == "absent":
        unverified_clause = "" if server.was_verified else "; no server has been verified on this host"
        return _down_state(f"there is no container {container.name}{unverified_clause}", DEPLOY_FIX)
    if container.status == "paused":
        return _down_state(f"{container.name} is paused", f"On the host: `docker unpause {container.name}`.")
    if container.status == "created":
        reason_clause = f": {server.last_exit.error}" if server.last_exit.error else ""
        return _down_state(f"{container.name} was created but never started{reason_clause}", RESTART_FIX)
    if (
        server.loop_stop_reason
    ):  # Docker would restart it, so it was stopped manually, regardless of what happened before
        message = f"no server answers: {container.name} {_describe_exit(server)}; crash loop: {server.loop_stop_reason}"
        return ServerState("crash-looping", message, LOGS_FIX)
    if container.status in ("exited", "dead"):
        return _down_state(f"{container.name} {_describe_exit(server)}", RESTART_FIX)
    return _down_state(f"{container.name} is {container.status}", RESTART_FIX)


def _check_crash_loop(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Recognize a crash loop, in which Docker keeps restarting a container that does not answer."""
    container, restarts = server.container, server.container.restarts or 0
    if server.engine_error or server.probe.health == 200:
        return None
    if (server.crash_loop_reason or restarts >= MIN_LOOP_RESTARTS) and not is_slow_start(server, limits):
        message = f"crash loop: {container.name} {_describe_exit(server, f', {restarts} restarts so far')}"
        return ServerState("crash-looping", f"no server answers: {message}", LOGS_FIX)
    if container.status == "restarting":
        return _down_state(f"{container.name} {_describe_exit(server)}; Docker is restarting it", LOGS_FIX)
    return None


def _check_start(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Evaluate a start, during which a running container's port does not answer or reports that it is not ready yet."""
    name, health, age_s = server.container.name, server.probe.health, server.age_s
    loading = health in server.engine.http.loading_statuses
    if health is None:
        return ServerState("unknown", f"{name} is running but publishes no port, so it cannot be checked")
    if health and not loading:
        return None
    if loading and server.log is not None and server.log.ready:
        message = f"/health returns {health}, but it was ready"
        return ServerState(
            "wedged", f"no {tasks.result_noun(server.engine.http)}: the server is wedged: {message}", RESTART_FIX
        )
    if age_s is None:
        return ServerState("unknown", f"nothing answers at {server.probe.url}, and the start time of {name} is unknown")
    last_start_clause = f"; the last start took {server.ready_s:.0f} s" if server.ready_s else ""
    previous_exit_clause = f"; {name} {_describe_exit(server)} before it" if server.container.restarts else ""
    stage_clause = f" ({_describe_stage(server)})" if _describe_stage(server) else ""
    message = f"for {age_s:.0f} s{stage_clause}{last_start_clause}{previous_exit_clause}"
    if server.log is not None and server.log.ready:
        prefix = "silent" if server.probe.error == "timeout" else "closed"
        return _down_state(f"{name} was ready, but {server.probe.url} is {prefix} now", RESTART_FIX)
    if age_s > server.max_start_s or (server.container.restarts and is_slow_start(server, limits)):
        return ServerState("slow start", f"no server answers: slow start: {name} has been starting {message}", LOGS_FIX)
    if server.container.restarts:
        return _down_state(f"{name} is starting again {message}", LOGS_FIX)
    prefix = "slow start: " if is_slow_start(server, limits) else ""
    return ServerState("starting", f"no server answers yet: {prefix}{name} has been starting {message}", WAIT_FIX)


def _check_health(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    if server.probe.health == 200:
        return None
    return _down_state(f"/health returns {server.probe.health}: the engine is dead", RESTART_FIX)


def _check_token(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    probe = server.probe
    if probe.token == "ended":
        return _down_state(f"{server.container.name} {_describe_exit(server)}, during the test request", LOGS_FIX)
    if probe.token == "none" and not probe.running:
        message = (
            f"/health returns 200 and there are no other requests, but no {tasks.result_noun(server.engine.http)} within "
            f"{probe.waited_s:g} s"
        )
        return ServerState(
            "wedged", f"no {tasks.result_noun(server.engine.http)}: the server is wedged: {message}", RESTART_FIX
        )
    if probe.token == "refused":
        return ServerState(
            "unknown", "not measured: the server requires an API key that is not known here", http.SET_KEY_FIX
        )
    if probe.token == "error":
        return ServerState(
            "down", f"no {tasks.result_noun(server.engine.http)}: the server returned an error: {probe.error}", LOGS_FIX
        )
    return None


def _check_other_traffic(server: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Evaluate a server in use by other clients from its counters, which show whether their requests get tokens."""
    probe = server.probe
    if not probe.running:
        return None
    running_clause = f"{format_count(int(probe.running), 'request')} running"
    if probe.stalled_s is None:
        rate_clause = f" at {probe.rate:.1f} tok/s in total" if probe.rate else ""
        message = f"not measured: {running_clause}{rate_clause}; measuring would slow them down"
        return ServerState("busy", message, "Try again when the server is idle.")
    message = f"{running_clause}, no {tasks.result_noun(server.engine.http)} for {probe.stalled_s:.0f} s"
    if probe.stalled_s >= limits.frozen_s:
        return ServerState(
            "stalled", f"no {tasks.result_noun(server.engine.http)}: the server is wedged: {message}", RESTART_FIX
        )
    return ServerState("unknown", f"unknown whether it is wedged: {message}; it may be a long prefill", "Try again.")


STATE_RULES: tuple[Callable[[DiagnosisInput, Limits], ServerState | None], ...] = (
    _check_engine,
    _check_server_is_known,
    _check_container,
    _check_crash_loop,
    _check_start,
    _check_health,
    _check_token,
    _check_other_traffic,
)


def _describe_exit(server: DiagnosisInput, extra_clause: str = "") -> str:
    """Return a clause such as `exited (1) 20 s ago, its last log line: "..."`. extra_clause: inserted before that line."""
    last_exit = server.last_exit
    manner = "was OOM-killed" if last_exit.out_of_memory else "exited"
    code_clause = f" ({last_exit.code})" if last_exit.code is not None else ""
    age_clause = (
        f" {units.format_rough_duration(server.now_s - last_exit.at_s)} ago" if last_exit.at_s is not None else ""
    )
    line_clause = f', its last log line: "{server.last_line}"' if server.last_line else ""
    return f"{manner}{code_clause}{age_clause}{extra_clause}{line_clause}"


def _describe_stage(server: DiagnosisInput) -> str:
    if server.log is None or not server.log.stage:
        return ""
    done, total = server.log.shards
    return f"{server.log.stage}, {done} of {total} shards" if total and done < total else server.log.stage


def worker_state(
    context: Context, verified_state: VerifiedState, server: DiagnosisInput, limits: Limits
) -> ServerState | None:
    """Return the state of a worker of a cluster, or None if the server is not a worker."""
    labels = verified_state.spec.get("labels")
    if not container_labels.membership_of_labels(labels).rank:
        return None
    rank = read_rank(context, verified_state, server.container, CheckHistory.load(context.state))
    state, message = current_state.evaluate_snapshot(
        Snapshot(server.now_s, server.container, error=server.engine_error), verified_state, rank, limits=limits
    )
    if server.active_run:
        return ServerState("in progress", f"in progress: {server.active_run}; {message}")
    states_by_name: dict[str, State] = {**{str(name): name for name in EXIT_CODES}, "up": "ok"}
    fix = ""
    if state == "down":
        verb, effect = ("deploy", "starts") if server.container.status == "absent" else ("restart", "restarts")
        fix = f"`invoke {verb} --host {rank.cluster}` {effect} the whole cluster."
    return ServerState(states_by_name.get(state, "unknown"), message, fix)

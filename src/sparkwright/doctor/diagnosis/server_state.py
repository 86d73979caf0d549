"""The observation of a server for a diagnosis, and the table of questions that determines its state, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sparkwright import units
from sparkwright.engines import engine as engines
from sparkwright.engines import http, tasks
from sparkwright.engines.engine import Engine
from sparkwright.engines.log.state import UNKNOWN, EngineState, Reading
from sparkwright.errors import Exit
from sparkwright.health import current_state
from sparkwright.health.judging.observation import Limits
from sparkwright.health.judging.ranks import LOOP, SETTLED_S
from sparkwright.health.probe import rank_now, start_of
from sparkwright.health.record import Container
from sparkwright.health.snapshot import Now
from sparkwright.health.store import CheckHistory
from sparkwright.host.containers import container_labels
from sparkwright.host.module import Context
from sparkwright.visible import count


@dataclass(frozen=True, slots=True)
class End:
    """The last exit of a container."""

    #: exit code; None if unknown
    code: int | None = None
    #: seconds since the epoch
    at_s: float | None = None
    out_of_memory: bool = False
    #: reason why Docker could not start it
    error: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """A server's answers to a probe."""

    url: str = ""
    #: HTTP status of /health; 0 if nothing answered, None if it was not requested
    health: int | None = None
    #: as in `health.record.Server`, or "ended" if the server exited because of the request
    token: Literal["", "made", "none", "refused", "error", "ended"] = ""
    #: how long the probe waited for a token, in seconds
    waited_s: float = 0.0
    error: str = ""
    #: number of requests in progress, including waiting ones
    running: float | None = None
    #: their total tokens per second
    rate: float | None = None
    #: how long no token was generated while they were running, in seconds
    still_s: float | None = None


@dataclass(frozen=True)
class DiagnosisInput:
    """The observation of a server at a moment."""

    #: seconds since the epoch
    now_s: float
    name: str = ""
    #: description of the run that holds the host's lock; empty for none
    busy: str = ""
    #: description of a run that was interrupted; empty for none
    cut_off: str = ""
    #: True if a server was ever verified on this host
    known: bool = False
    #: reason why the Docker Engine does not answer
    engine_error: str = ""
    #: the fix for that
    engine_fix: str = ""
    box: Container = field(default_factory=Container)
    inspected: Mapping[str, Any] = field(default_factory=dict)
    end: End = field(default_factory=End)
    #: state from the log of the current start; None if it could not be read
    log: EngineState | None = None
    #: reason for the exit of this start or the previous one
    failure: Reading = UNKNOWN
    #: last line of that start's log
    last_line: str = ""
    #: reason why the restarts count as a crash loop
    loop: str = ""
    #: reason why an earlier check stopped it
    broken: str = ""
    #: the server whose turn it is instead of this one; empty for none
    asleep: str = ""
    #: time of the host's last boot, in seconds since the epoch
    booted_s: float | None = None
    #: sentence about a host that went down with this server; empty for none
    lost: str = ""
    #: how long a start may take, in seconds
    allowed_s: float = 0.0
    #: how long the last measured start took, in seconds
    ready_s: float | None = None
    port: int | None = None
    #: process that uses the port of a container that is not running
    listener: str = ""
    #: differences from the verified state
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    probe: Probe = field(default_factory=Probe)
    #: engine of the container, or else of the verified server
    engine: Engine = field(default_factory=lambda: engines.of(engines.USUAL))

    @property
    def age_s(self) -> float | None:
        """The time since the container was started, in seconds; None if unknown."""
        return None if self.box.started_s is None else max(0.0, self.now_s - self.box.started_s)


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
    #: how long a token may take, in seconds; 0 for the limit of the health checks
    token_s: float = 0.0
    key: str = ""


Bad = Literal["slow", "degraded", "slow start", "wedged", "stalled", "crash-looping", "down"]
State = Literal["ok", "asleep", "busy", "in progress", "starting", "unknown", Bad]

#: exit codes of `diagnose`, by state
EXITS: dict[State, Exit] = {
    **dict.fromkeys(("ok", "asleep"), Exit.OK),
    **dict.fromkeys(("busy", "in progress", "starting", "unknown"), Exit.INCONCLUSIVE),
    **dict.fromkeys(get_args(Bad), Exit.FAILED),
}

LINE_CHARS = 200


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server."""

    state: State
    #: a complete sentence
    message: str
    #: command that helps; empty if there is none
    fix: str = ""


def standing(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Return the state of a server that is not serving or can't be measured, or None if it generated a token and is idle."""
    found = next((server_state for ask in QUESTIONS if (server_state := ask(seen, limits)) is not None), None)
    if not seen.busy:
        return found
    meanwhile = found.message if found is not None else "/health answers; not measured during the run"
    message = f"in progress: {seen.busy}; {meanwhile}"
    return ServerState("in progress", message, "Run `invoke diagnose` again when it has finished.")


def is_slow(seen: DiagnosisInput, limits: Limits) -> bool:
    """Return True if this start takes longer than the last measured one explains.

    Returns False as long as Docker may still consider it a restart.
    """
    if seen.box.status != "running" or seen.age_s is None:
        return False
    return seen.age_s > (max(SETTLED_S, limits.ready_factor * seen.ready_s) if seen.ready_s else seen.allowed_s)


def _down(message: str, fix: str) -> ServerState:
    return ServerState("down", f"no server answers: {message}", fix)


def _engine(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Judge a server without the Docker Engine, by its port alone. If the port answers, the server is measured anyway."""
    if not seen.engine_error or seen.probe.health == 200:
        return None
    if seen.probe.health is None:
        return ServerState("unknown", f"unknown whether a server is running: {seen.engine_error}", seen.engine_fix)
    return ServerState("down", f"no server answers at {seen.probe.url}: {seen.engine_error}", seen.engine_fix)


def _nothing(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    if seen.name:
        return None
    return ServerState("unknown", "no server known: nothing deployed, and the host has no recipe", DEPLOY)


def _container(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    box = seen.box
    if seen.engine_error or box.status in ("running", "restarting"):
        return None
    if seen.asleep:
        return ServerState("asleep", f"{box.name} is asleep: it is the turn of {seen.asleep}", WAKE)
    if box.status == "absent":
        never = "" if seen.known else "; no server has been verified on this host"
        return _down(f"there is no container {box.name}{never}", DEPLOY)
    if box.status == "paused":
        return _down(f"{box.name} is paused", f"On the host: `docker unpause {box.name}`.")
    if box.status == "created":
        why = f": {seen.end.error}" if seen.end.error else ""
        return _down(f"{box.name} was created but never started{why}", RESTART)
    if seen.broken:  # Docker would restart it, so it was stopped manually, regardless of what happened before
        message = f"no server answers: {box.name} {_ended(seen)}; crash loop: {seen.broken}"
        return ServerState("crash-looping", message, SEE_LOGS)
    if box.status in ("exited", "dead"):
        return _down(f"{box.name} {_ended(seen)}", RESTART)
    return _down(f"{box.name} is {box.status}", RESTART)


def _loop(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Judge a crash loop, in which Docker keeps restarting a container that does not answer."""
    box, restarts = seen.box, seen.box.restarts or 0
    if seen.engine_error or seen.probe.health == 200:
        return None
    if (seen.loop or restarts >= LOOP) and not is_slow(seen, limits):
        message = f"crash loop: {box.name} {_ended(seen, f', {restarts} restarts so far')}"
        return ServerState("crash-looping", f"no server answers: {message}", SEE_LOGS)
    if box.status == "restarting":
        return _down(f"{box.name} {_ended(seen)}; Docker is restarting it", SEE_LOGS)
    return None


def _start(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Judge a start, in which the port of a running container does not answer or reports that it is not ready yet."""
    name, health, age_s = seen.box.name, seen.probe.health, seen.age_s
    loading = health in seen.engine.http.loading
    if health is None:
        return ServerState("unknown", f"{name} is running but publishes no port, so it cannot be checked")
    if health and not loading:
        return None
    if loading and seen.log is not None and seen.log.ready:
        message = f"/health answers {health}, but it was ready"
        return ServerState("wedged", f"no {tasks.noun(seen.engine.http)}: the server is wedged: {message}", RESTART)
    if age_s is None:
        return ServerState("unknown", f"nothing answers at {seen.probe.url}, and the start time of {name} is unknown")
    last = f"; the last start took {seen.ready_s:.0f} s" if seen.ready_s else ""
    again = f"; {name} {_ended(seen)} before it" if seen.box.restarts else ""
    stage = f" ({_stage(seen)})" if _stage(seen) else ""
    message = f"for {age_s:.0f} s{stage}{last}{again}"
    if seen.log is not None and seen.log.ready:
        how = "silent" if seen.probe.error == "timeout" else "closed"
        return _down(f"{name} was ready, and {seen.probe.url} is {how} now", RESTART)
    if age_s > seen.allowed_s or (seen.box.restarts and is_slow(seen, limits)):
        return ServerState("slow start", f"no server answers: slow start: {name} has been starting {message}", SEE_LOGS)
    if seen.box.restarts:
        return _down(f"{name} is starting again {message}", SEE_LOGS)
    how = "slow start: " if is_slow(seen, limits) else ""
    return ServerState("starting", f"no server answers yet: {how}{name} has been starting {message}", WAIT)


def _health(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    if seen.probe.health == 200:
        return None
    return _down(f"/health returns {seen.probe.health}: the engine is dead", RESTART)


def _token(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    probe = seen.probe
    if probe.token == "ended":
        return _down(f"{seen.box.name} {_ended(seen)}, on the test request", SEE_LOGS)
    if probe.token == "none" and not probe.running:
        message = (
            f"/health answers 200, no other requests, but no {tasks.noun(seen.engine.http)} within {probe.waited_s:g} s"
        )
        return ServerState("wedged", f"no {tasks.noun(seen.engine.http)}: the server is wedged: {message}", RESTART)
    if probe.token == "refused":
        return ServerState("unknown", "not measured: the server requires an API key that is not known here", http.SET)
    if probe.token == "error":
        return ServerState(
            "down", f"no {tasks.noun(seen.engine.http)}: the server returned an error: {probe.error}", SEE_LOGS
        )
    return None


def _others(seen: DiagnosisInput, limits: Limits) -> ServerState | None:
    """Judge by other clients' requests, which are not disturbed: the counters show whether they get tokens."""
    probe = seen.probe
    if not probe.running:
        return None
    runs = f"{count(int(probe.running), 'request')} running"
    if probe.still_s is None:
        rate = f" at {probe.rate:.1f} tok/s in total" if probe.rate else ""
        message = f"not measured: {runs}{rate}; measuring would slow them down"
        return ServerState("busy", message, "Try again when the server is idle.")
    message = f"{runs}, no {tasks.noun(seen.engine.http)} for {probe.still_s:.0f} s"
    if probe.still_s >= limits.frozen_s:
        return ServerState("stalled", f"no {tasks.noun(seen.engine.http)}: the server is wedged: {message}", RESTART)
    return ServerState("unknown", f"unknown whether it is wedged: {message}; it may be a long prefill", "Try again.")


QUESTIONS: tuple[Callable[[DiagnosisInput, Limits], ServerState | None], ...]
QUESTIONS = (_engine, _nothing, _container, _loop, _start, _health, _token, _others)

DEPLOY = "Run `invoke deploy` to start a server."
RESTART = "Run `invoke restart`."
SEE_LOGS = "`invoke logs` shows why; `invoke rollback` goes back to the last verified state."
WAKE = "`invoke switch` wakes it."
WAIT = "Wait, then try again."


def _ended(seen: DiagnosisInput, more: str = "") -> str:
    """Return a clause such as `exited (1) 20 s ago, its last line: "..."`. more: inserted before that line."""
    end = seen.end
    how = "was OOM-killed" if end.out_of_memory else "exited"
    code = f" ({end.code})" if end.code is not None else ""
    when = f" {units.about(seen.now_s - end.at_s)} ago" if end.at_s is not None else ""
    line = f', its last line: "{seen.last_line}"' if seen.last_line else ""
    return f"{how}{code}{when}{more}{line}"


def _stage(seen: DiagnosisInput) -> str:
    if seen.log is None or not seen.log.stage:
        return ""
    done, total = seen.log.shards
    return f"{seen.log.stage}, {done} of {total} shards" if total and done < total else seen.log.stage


def worker_standing(context: Context, good: Mapping[str, Any], seen: DiagnosisInput) -> ServerState | None:
    """Return the state of a worker, or None if the server is not a worker. good: the last verified state."""
    labels = (good.get("spec") or {}).get("labels")
    if not container_labels.membership_of_labels(labels).rank:
        return None
    rank = rank_now(context, good, seen.box, CheckHistory.of(context.state), start_of(seen.box))
    state, message = current_state.judged(Now(seen.now_s, seen.box, error=seen.engine_error), good, rank)
    if seen.busy:
        return ServerState("in progress", f"in progress: {seen.busy}; {message}")
    known: dict[str, State] = {**{str(name): name for name in EXITS}, "up": "ok"}
    fix = f"`invoke restart --host {rank.cluster}` restarts the whole cluster." if state == "down" else ""
    return ServerState(known.get(state, "unknown"), message, fix)

"""From what was observed to a state: a table of questions, each a pure function with its evidence. No I/O here.

The worst answer decides. A question that can't be answered says so; it never counts as a good one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sparkwright.errors import Exit
from sparkwright.health.judging import restarts
from sparkwright.health.record import (
    Container,
    Cure,
    Evidence,
    Gpu,
    Level,
    Machine,
    Server,
    Speed,
    State,
    differs,
    severity,
)
from sparkwright.units import GIB, gib

#: what `sparkwright health` ends with. A slow start is no failure; what serves, but not as it should, is "changes or drift"
EXITS: dict[State, Exit] = {
    "ok": Exit.OK,
    "starting": Exit.OK,
    "degraded": Exit.CHANGES,
    "unknown": Exit.INCONCLUSIVE,
    "stalled": Exit.FAILED,
    "wedged": Exit.FAILED,
    "crash-looping": Exit.FAILED,
    "down": Exit.FAILED,
}

POWER = "cut the host's AC power for 60 s (USB-PD); a restart does not fix it"


@dataclass(frozen=True, slots=True)
class Limits:
    """Where good ends. frozen_s: longer than the longest prefill (128K tokens take about 52 s on a GB10).

    ready_factor: a start may take this times the last measured one, never less than ready_floor_s. ready_s: how long when none
    was measured.
    busy_percent, low_w, low_mhz: together the sign of a power supply that negotiated too little.
    """

    token_s: float = 30.0
    frozen_s: float = 60.0
    ready_factor: float = 2.0
    ready_floor_s: float = 30.0
    ready_s: float = 900.0
    available_bytes: int = 2 * GIB
    swap_used: float = 0.9
    disk_free_bytes: int = 5 * GIB
    temperature_c: float = 90.0
    busy_percent: float = 90.0
    low_w: float = 40.0
    low_mhz: float = 1400.0


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look found. Absence is said, never guessed: None, or a sentence in the field ending in `_error`.

    known: a server was verified here once. loop: why its restarts are a loop. broken: why an earlier check took its policy.
    answered: this very start has answered before. ready_s: the last measured start, None when there is none.
    error: what was said instead of a token. frozen_s: how long no token was generated while requests ran, over two looks.
    gpus: samples, a second apart when the first is suspicious. policy: what the last good state asks for.
    """

    time_s: float
    busy: str = ""
    known: bool = True
    engine_error: str = ""
    container: Container = field(default_factory=Container)
    policy: str = ""
    loop: str = ""
    broken: str = ""
    answered: bool = False
    ready_s: float | None = None
    server: Server = field(default_factory=Server)
    engine_version: str = ""
    error: str = ""
    frozen_s: float | None = None
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    gpus: tuple[Gpu, ...] = ()
    drift: tuple[str, ...] = ()
    drift_error: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer: its evidence, the state it means by itself, and what helps."""

    evidence: Evidence
    state: State = "ok"
    cure: Cure = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """state: the worst finding's. why: its sentence. cure: what helps; "power" when nothing else does."""

    state: State
    why: str
    cure: Cure
    evidence: tuple[Evidence, ...]


Answer = tuple[Level, str] | tuple[Level, str, State] | tuple[Level, str, State, Cure] | None


def judge(observed: Observation, limits: Limits, asked: Collection[str] = ()) -> Judgement:
    """The state that one observation means by itself. asked: only these questions; all if not given."""
    answers = [(name, ask(observed, limits)) for name, ask in QUESTIONS.items() if not asked or name in asked]
    findings = [found for name, answer in answers if (found := _finding(name, answer)) is not None]
    worst = max(findings, key=lambda one: severity(one.state))
    cure: Cure = "power" if any(one.cure == "power" for one in findings) else worst.cure
    good = worst.state == "ok"
    why = _fine(observed) if good else worst.evidence.message
    return Judgement(worst.state, why, "" if good else cure, tuple(one.evidence for one in findings))


def _finding(name: str, answer: Answer) -> Finding | None:
    if answer is None:
        return None
    level, message, *rest = answer
    return Finding(Evidence(name, level, message), *rest)


def _fine(observed: Observation) -> str:
    made = f"a token in {observed.server.token_s:.2f} s" if observed.server.token_s is not None else "it generates"
    speed = f", {observed.speed.tok_per_s:.1f} tok/s" if observed.speed.tok_per_s is not None else ""
    return f"{made}{speed}"


# -- the questions -----------------------------------------------------------------------------------------------------


def _somebody_works(observed: Observation, limits: Limits) -> Answer:
    if observed.busy:
        return "unknown", f"in progress: {observed.busy}", "unknown"
    if not observed.known:
        return "unknown", "no server has been verified here", "unknown", "deploy"
    return None


def _container(observed: Observation, limits: Limits) -> Answer:
    box = observed.container
    if observed.busy or not observed.known:
        return None
    if observed.engine_error:
        return "unknown", observed.engine_error, "unknown", "person"
    if observed.loop:
        return "bad", f"{box.name}: {observed.loop}", "crash-looping", "person"
    if observed.broken and box.status != "running":
        return "bad", f"{box.name} was stopped for a crash loop: {observed.broken}", "crash-looping", "person"
    if box.status == "absent":
        return "bad", f"there is no container {box.name}", "down", "deploy"
    if box.status == "paused":
        return "bad", f"{box.name} is paused", "down", "person"
    if box.status == "restarting" and not box.exit_code and not box.restarts:
        return "warn", f"{box.name} is being restarted", "starting"
    if box.status == "restarting":
        return (
            "bad",
            f"{restarts.exited(box, observed.time_s)}; restart {box.restarts} in progress",
            restarts.state(box, observed.time_s),
        )
    if box.status != "running":
        how = "finished or stopped by hand" if box.exit_code == 0 else "not restarted"
        return "bad", f"{box.name} is {box.status} (exit code {box.exit_code}), {how}", "down", "person"
    age = f" for {(observed.time_s - box.started_s) / 3600:.1f} h" if box.started_s is not None else ""
    return "ok", f"{box.name} runs{age}, {box.restarts} restarts"


def _policy(observed: Observation, limits: Limits) -> Answer:
    box = observed.container
    if observed.busy or not observed.policy or not box.policy or box.policy == observed.policy:
        return None
    return (
        "warn",
        f"its restart policy is {box.policy!r}, not {observed.policy!r}: it will not start after a reboot",
        "degraded",
        "deploy",
    )


def _health(observed: Observation, limits: Limits) -> Answer:
    """/health: nobody answers while it starts; later that is the end of it."""
    status, box = observed.server.health_status, observed.container
    if status is None:
        return None
    if status == 200:
        return "ok", "/health answers 200"
    if status:
        return "bad", f"/health answers {status}: the engine is dead", "down", "restart"
    message = f"nothing answers at {observed.server.url}{f' ({observed.error})' if observed.error else ''}"
    if box.status not in ("running", "restarting"):
        return ("bad" if box.status else "unknown"), message, "down"
    if box.started_s is None:
        return "unknown", f"{message}, and its start time is unknown", "unknown"
    age_s = max(0.0, observed.time_s - box.started_s)
    most_s = allowed_s(observed.ready_s, limits)
    measured = f", the last start took {observed.ready_s:.0f} s" if observed.ready_s else ""
    if observed.answered:
        return "bad", f"{message} any more, but its process is running", "down", "restart"
    start = f"starting for {age_s:.0f} s (up to {most_s:.0f} s{measured})"
    if age_s <= most_s and box.restarts:
        return "bad", f"{restarts.again(box, observed.time_s)}; {start}", restarts.state(box, observed.time_s)
    if age_s <= most_s:
        return "warn", start, "starting"
    return "bad", f"{message} after {age_s:.0f} s; a start may take {most_s:.0f} s{measured}", "down", "restart"


def allowed_s(ready_s: float | None, limits: Limits) -> float:
    """How long a start may take, seconds. ready_s: how long the last one took."""
    return max(limits.ready_floor_s, limits.ready_factor * ready_s) if ready_s else limits.ready_s


def _token(observed: Observation, limits: Limits) -> Answer:
    server = observed.server
    reported: dict[str, Answer] = {
        "": None,
        "made": ("ok", f"generated a token in {server.token_s or 0:.2f} s"),
        "skipped": ("ok", f"generating for {server.running or 0:.0f} requests: no test request sent"),
        "refused": ("unknown", "it requires an API key that is not known here", "unknown", "person"),
        "error": ("bad", f"the test request failed: {observed.error}", "down", "restart"),
    }
    if server.token != "none":
        return reported[server.token]
    if server.running is None:
        return "bad", f"/health answers 200, but no token within {limits.token_s:g} s", "wedged", "restart"
    if server.running:
        message = f"no token within {limits.token_s:g} s with {server.running:.0f} requests running"
        return "warn", f"{message}: this may be a long prefill; not confirmed by one check", "unknown"
    return (
        "bad",
        f"/health answers 200 and the server is idle, but no token within {limits.token_s:g} s",
        "wedged",
        "restart",
    )


def _frozen(observed: Observation, limits: Limits) -> Answer:
    running = observed.server.running
    if running is None:
        return None if observed.server.health_status != 200 else ("unknown", "cannot read its metrics")
    if observed.frozen_s is None:
        return "ok", f"{running:.0f} requests running, no sign of a stall"
    message = f"no token for {observed.frozen_s:.0f} s while {running:.0f} requests are running"
    if observed.frozen_s < limits.frozen_s:
        return "warn", message
    return "bad", message, "stalled", "restart"


def _power(observed: Observation, limits: Limits) -> Answer:
    """Busy, few watts, low clock, in every sample: the power supply negotiated too little."""
    if not observed.gpus:
        return None if observed.busy else ("unknown", "nvidia-smi returned no data")
    if all(starved(one, limits) for one in observed.gpus):
        one = observed.gpus[-1]
        message = f"the GPU is {one.utilization_percent:.0f} % busy at {one.clock_mhz:.0f} MHz and {one.power_w:.0f} W"
        return "bad", f"{message}: {POWER}", "degraded", "power"
    return "ok", _gpu_words(observed.gpus[-1])


def _temperature(observed: Observation, limits: Limits) -> Answer:
    found = observed.gpus[-1].temperature_c if observed.gpus else None
    if found is None:
        return None
    if found >= limits.temperature_c:
        return "bad", f"GPU temperature {found:.0f} °C (limit {limits.temperature_c:.0f})", "degraded", "person"
    return "ok", f"GPU temperature {found:.0f} °C"


def _speed(observed: Observation, limits: Limits) -> Answer:
    speed = observed.speed
    if speed.tok_per_s is None:
        return None if not speed.verdict else ("unknown", f"throughput unknown: {speed.verdict}")
    base = f", baseline {speed.baseline_tok_per_s:.1f}" if speed.baseline_tok_per_s else ""
    message = f"{speed.tok_per_s:.1f} tok/s{base}"
    if speed.verdict in SLOW:
        return "bad", f"{speed.verdict}: {message}; run `sparkwright diagnose`", "degraded", SLOW[speed.verdict]
    return "ok", message


#: verdicts of `smoke_test` that mean too slow, and what helps
SLOW: dict[str, Cure] = {"regression": "person", "misconfigured": "deploy", "host degraded": "power"}


def _memory(observed: Observation, limits: Limits) -> Answer:
    left, total = observed.machine.mem_available_bytes, observed.machine.mem_total_bytes
    if left is None or total is None:
        return None if observed.busy else ("unknown", "cannot read /proc/meminfo")
    message = f"{gib(left)} of {gib(total)} GiB available"
    if left < limits.available_bytes:
        return (
            "bad",
            f"{message}: below {gib(limits.available_bytes)} GiB the host may run out of memory",
            "degraded",
            "person",
        )
    return "ok", message


def _swap(observed: Observation, limits: Limits) -> Answer:
    used, total = observed.machine.swap_used_bytes, observed.machine.swap_total_bytes
    if used is None or not total:
        return None
    message = f"{gib(used)} of {gib(total)} GiB of swap used"
    return ("bad", message, "degraded", "person") if used > limits.swap_used * total else ("ok", message)


def _disk(observed: Observation, limits: Limits) -> Answer:
    free = observed.machine.disk_free_bytes
    if free is None:
        return None
    message = f"{gib(free)} GiB free on the disk"
    return ("bad", message, "degraded", "person") if free < limits.disk_free_bytes else ("ok", message)


def _drift(observed: Observation, limits: Limits) -> Answer:
    if observed.drift_error:
        return "unknown", observed.drift_error
    if observed.container.status in ("", "absent"):
        return None
    if observed.drift:
        return "bad", f"differs from the last good state: {differs(observed.drift)}", "degraded", "deploy"
    return "ok", "container, image and model match the verified state"


def starved(one: Gpu, limits: Limits) -> bool:
    """Whether a GPU is busy at few watts and a low clock."""
    reported = one.utilization_percent, one.power_w, one.clock_mhz
    if any(value is None for value in reported):
        return False
    busy, power, clock = reported
    return bool(busy > limits.busy_percent and power < limits.low_w and clock < limits.low_mhz)  # type: ignore[operator]


def _gpu_words(one: Gpu) -> str:
    reported = (
        (one.utilization_percent, "{:.0f} % busy"),
        (one.clock_mhz, "{:.0f} MHz"),
        (one.power_w, "{:.0f} W"),
    )
    return "the GPU is " + (", ".join(form.format(value) for value, form in reported if value is not None) or "there")


#: every question by the name of its evidence, in the order a person asks them
QUESTIONS: dict[str, Callable[[Observation, Limits], Answer]] = {
    "deploy": _somebody_works,
    "container": _container,
    "restart policy": _policy,
    "/health": _health,
    "token": _token,
    "stall": _frozen,
    "power": _power,
    "temperature": _temperature,
    "speed": _speed,
    "memory": _memory,
    "swap": _swap,
    "disk": _disk,
    "drift": _drift,
}

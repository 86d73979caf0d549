"""From what was looked at to a state: a table of questions, each a pure function with its evidence. No I/O here.

The worst answer decides. A question that can't be answered says so; it never counts as a good one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sparkwright import defaults
from sparkwright.errors import Exit
from sparkwright.health import restarts
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

    token_s: float = defaults.TOKEN_S
    frozen_s: float = 60.0
    ready_factor: float = 2.0
    ready_floor_s: float = 30.0
    ready_s: float = defaults.READY_S
    available_bytes: int = 2 * GIB
    swap_used: float = 0.9
    disk_free_bytes: int = 5 * GIB
    temperature_c: float = 90.0
    busy_percent: float = 90.0
    low_w: float = 40.0
    low_mhz: float = 1400.0


@dataclass(frozen=True, slots=True)
class Look:
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


def judge(look: Look, limits: Limits, asked: Collection[str] = ()) -> Judgement:
    """The state that a look means by itself. asked: only these questions; all if not given."""
    answers = [(name, ask(look, limits)) for name, ask in QUESTIONS.items() if not asked or name in asked]
    findings = [found for name, answer in answers if (found := _finding(name, answer)) is not None]
    worst = max(findings, key=lambda one: severity(one.state))
    cure: Cure = "power" if any(one.cure == "power" for one in findings) else worst.cure
    good = worst.state == "ok"
    why = _fine(look) if good else worst.evidence.said
    return Judgement(worst.state, why, "" if good else cure, tuple(one.evidence for one in findings))


def _finding(name: str, answer: Answer) -> Finding | None:
    if answer is None:
        return None
    level, said, *rest = answer
    return Finding(Evidence(name, level, said), *rest)


def _fine(look: Look) -> str:
    made = f"a token in {look.server.token_s:.2f} s" if look.server.token_s is not None else "it generates"
    speed = f", {look.speed.tok_per_s:.1f} tok/s" if look.speed.tok_per_s is not None else ""
    return f"{made}{speed}"


# -- the questions -----------------------------------------------------------------------------------------------------


def _somebody_works(look: Look, limits: Limits) -> Answer:
    if look.busy:
        return "unknown", f"in progress: {look.busy}", "unknown"
    if not look.known:
        return "unknown", "no server has been verified here", "unknown", "deploy"
    return None


def _container(look: Look, limits: Limits) -> Answer:
    box = look.container
    if look.busy or not look.known:
        return None
    if look.engine_error:
        return "unknown", look.engine_error, "unknown", "person"
    if look.loop:
        return "bad", f"{box.name}: {look.loop}", "crash-looping", "person"
    if look.broken and box.status != "running":
        return "bad", f"{box.name} was stopped for a crash loop: {look.broken}", "crash-looping", "person"
    if box.status == "absent":
        return "bad", f"there is no container {box.name}", "down", "deploy"
    if box.status == "paused":
        return "bad", f"{box.name} is paused", "down", "person"
    if box.status == "restarting" and not box.exit_code and not box.restarts:
        return "warn", f"{box.name} is being restarted", "starting"
    if box.status == "restarting":
        return (
            "bad",
            f"{restarts.exited(box, look.time_s)}; restart {box.restarts} in progress",
            restarts.state(box, look.time_s),
        )
    if box.status != "running":
        how = "finished or stopped by hand" if box.exit_code == 0 else "not restarted"
        return "bad", f"{box.name} is {box.status} (exit code {box.exit_code}), {how}", "down", "person"
    age = f" for {(look.time_s - box.started_s) / 3600:.1f} h" if box.started_s is not None else ""
    return "ok", f"{box.name} runs{age}, {box.restarts} restarts"


def _policy(look: Look, limits: Limits) -> Answer:
    box = look.container
    if look.busy or not look.policy or not box.policy or box.policy == look.policy:
        return None
    return (
        "warn",
        f"its restart policy is {box.policy!r}, not {look.policy!r}: it will not start after a reboot",
        "degraded",
        "deploy",
    )


def _health(look: Look, limits: Limits) -> Answer:
    """/health: nobody answers while it starts; later that is the end of it."""
    status, box = look.server.health_status, look.container
    if status is None:
        return None
    if status == 200:
        return "ok", "/health answers 200"
    if status:
        return "bad", f"/health answers {status}: the engine is dead", "down", "restart"
    said = f"nothing answers at {look.server.url}{f' ({look.error})' if look.error else ''}"
    if box.status not in ("running", "restarting"):
        return ("bad" if box.status else "unknown"), said, "down"
    if box.started_s is None:
        return "unknown", f"{said}, and its start time is unknown", "unknown"
    age_s = max(0.0, look.time_s - box.started_s)
    most_s = allowed_s(look.ready_s, limits)
    measured = f", the last start took {look.ready_s:.0f} s" if look.ready_s else ""
    if look.answered:
        return "bad", f"{said} any more, but its process is running", "down", "restart"
    start = f"starting for {age_s:.0f} s (up to {most_s:.0f} s{measured})"
    if age_s <= most_s and box.restarts:
        return "bad", f"{restarts.again(box, look.time_s)}; {start}", restarts.state(box, look.time_s)
    if age_s <= most_s:
        return "warn", start, "starting"
    return "bad", f"{said} after {age_s:.0f} s; a start may take {most_s:.0f} s{measured}", "down", "restart"


def allowed_s(ready_s: float | None, limits: Limits) -> float:
    """How long a start may take, seconds. ready_s: how long the last one took."""
    return max(limits.ready_floor_s, limits.ready_factor * ready_s) if ready_s else limits.ready_s


def _token(look: Look, limits: Limits) -> Answer:
    server = look.server
    told: dict[str, Answer] = {
        "": None,
        "made": ("ok", f"generated a token in {server.token_s or 0:.2f} s"),
        "skipped": ("ok", f"generating for {server.running or 0:.0f} requests: no test request sent"),
        "refused": ("unknown", "it requires an API key that is not known here", "unknown", "person"),
        "error": ("bad", f"the test request failed: {look.error}", "down", "restart"),
    }
    if server.token != "none":
        return told[server.token]
    if server.running is None:
        return "bad", f"/health answers 200, but no token within {limits.token_s:g} s", "wedged", "restart"
    if server.running:
        said = f"no token within {limits.token_s:g} s with {server.running:.0f} requests running"
        return "warn", f"{said}: this may be a long prefill; not confirmed by one check", "unknown"
    return (
        "bad",
        f"/health answers 200 and the server is idle, but no token within {limits.token_s:g} s",
        "wedged",
        "restart",
    )


def _frozen(look: Look, limits: Limits) -> Answer:
    running = look.server.running
    if running is None:
        return None if look.server.health_status != 200 else ("unknown", "cannot read its metrics")
    if look.frozen_s is None:
        return "ok", f"{running:.0f} requests running, no sign of a stall"
    said = f"no token for {look.frozen_s:.0f} s while {running:.0f} requests are running"
    if look.frozen_s < limits.frozen_s:
        return "warn", said
    return "bad", said, "stalled", "restart"


def _power(look: Look, limits: Limits) -> Answer:
    """Busy, few watts, low clock, in every sample: the power supply negotiated too little."""
    if not look.gpus:
        return None if look.busy else ("unknown", "nvidia-smi returned no data")
    if all(starved(one, limits) for one in look.gpus):
        one = look.gpus[-1]
        said = f"the GPU is {one.utilization_percent:.0f} % busy at {one.clock_mhz:.0f} MHz and {one.power_w:.0f} W"
        return "bad", f"{said}: {POWER}", "degraded", "power"
    return "ok", _gpu_words(look.gpus[-1])


def _temperature(look: Look, limits: Limits) -> Answer:
    found = look.gpus[-1].temperature_c if look.gpus else None
    if found is None:
        return None
    if found >= limits.temperature_c:
        return "bad", f"GPU temperature {found:.0f} °C (limit {limits.temperature_c:.0f})", "degraded", "person"
    return "ok", f"GPU temperature {found:.0f} °C"


def _speed(look: Look, limits: Limits) -> Answer:
    speed = look.speed
    if speed.tok_per_s is None:
        return None if not speed.verdict else ("unknown", f"throughput unknown: {speed.verdict}")
    base = f", baseline {speed.baseline_tok_per_s:.1f}" if speed.baseline_tok_per_s else ""
    said = f"{speed.tok_per_s:.1f} tok/s{base}"
    if speed.verdict in SLOW:
        return "bad", f"{speed.verdict}: {said}; run `sparkwright diagnose`", "degraded", SLOW[speed.verdict]
    return "ok", said


#: verdicts of `smoke_test` that mean too slow, and what helps
SLOW: dict[str, Cure] = {"regression": "person", "misconfigured": "deploy", "host degraded": "power"}


def _memory(look: Look, limits: Limits) -> Answer:
    left, total = look.machine.mem_available_bytes, look.machine.mem_total_bytes
    if left is None or total is None:
        return None if look.busy else ("unknown", "cannot read /proc/meminfo")
    said = f"{gib(left)} of {gib(total)} GiB available"
    if left < limits.available_bytes:
        return (
            "bad",
            f"{said}: below {gib(limits.available_bytes)} GiB the host may run out of memory",
            "degraded",
            "person",
        )
    return "ok", said


def _swap(look: Look, limits: Limits) -> Answer:
    used, total = look.machine.swap_used_bytes, look.machine.swap_total_bytes
    if used is None or not total:
        return None
    said = f"{gib(used)} of {gib(total)} GiB of swap used"
    return ("bad", said, "degraded", "person") if used > limits.swap_used * total else ("ok", said)


def _disk(look: Look, limits: Limits) -> Answer:
    free = look.machine.disk_free_bytes
    if free is None:
        return None
    said = f"{gib(free)} GiB free on the disk"
    return ("bad", said, "degraded", "person") if free < limits.disk_free_bytes else ("ok", said)


def _drift(look: Look, limits: Limits) -> Answer:
    if look.drift_error:
        return "unknown", look.drift_error
    if look.container.status in ("", "absent"):
        return None
    if look.drift:
        return "bad", f"differs from the last good state: {differs(look.drift)}", "degraded", "deploy"
    return "ok", "container, image and model match the verified state"


def starved(one: Gpu, limits: Limits) -> bool:
    """Whether a GPU is busy at few watts and a low clock."""
    told = one.utilization_percent, one.power_w, one.clock_mhz
    if any(value is None for value in told):
        return False
    busy, power, clock = told
    return bool(busy > limits.busy_percent and power < limits.low_w and clock < limits.low_mhz)  # type: ignore[operator]


def _gpu_words(one: Gpu) -> str:
    told = (
        (one.utilization_percent, "{:.0f} % busy"),
        (one.clock_mhz, "{:.0f} MHz"),
        (one.power_w, "{:.0f} W"),
    )
    return "the GPU is " + (", ".join(form.format(value) for value, form in told if value is not None) or "there")


#: every question by the name of its evidence, in the order a person asks them
QUESTIONS: dict[str, Callable[[Look, Limits], Answer]] = {
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

"""The record of one check: what `health.json` holds (the latest) and each line of `health.jsonl` (the history).

Standard library only, so that both sides read it with the same code. What is not known is null, never a guess.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sparkwright.trust.shapes import Shape, Usual, built, fitted, integer, line, moment, number, text
from sparkwright.visible import first

SCHEMA = 1

#: in the host's state folder, ~/.local/state/sparkwright
LATEST = "health.json"
HISTORY = "health.jsonl"
#: the history before it was rotated, oldest last: health.jsonl.1, health.jsonl.2 ...
ROTATED = 4
ROTATE_BYTES = 4 * 2**20
#: a check by hand speaks for the present as long as this
ON_DEMAND_S = 600.0

#: of one host, from best to worst: of several findings, and of several checks of one time, the worst counts. Of several hosts the
#: exit codes decide (app/outcome.py), where a host that starts is no failure
State = Literal["ok", "asleep", "unknown", "degraded", "starting", "down", "crash-looping", "stalled", "wedged"]
STATES: tuple[State, ...] = get_args(State)

#: what a file of the model begins with in a record's drift
FILE = "model "


def severity(state: str) -> int:
    """How bad a state is: 0 is ok. One that this version does not know is as bad as `unknown`."""
    return STATES.index(state) if state in STATES else STATES.index("unknown")


Level = Literal["ok", "warn", "bad", "unknown"]
#: what helps: a restart, cutting the AC power, a new deploy, a person; "" when nothing has to be done
Cure = Literal["", "restart", "power", "deploy", "person"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was checked. check: its name (see judging/questions.py). message: one sentence, with figures and units."""

    check: str
    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class Container:
    """The server's container, as the engine inspects it. status: docker's word, "absent" when there is none.

    restarts: docker's own count since the last start by hand. started_s, finished_s: seconds since the epoch; a container that
    runs has a finished_s where it ran before. exit_code: None while it runs, for docker forgets it then.
    verified: it is the very container of the last good state.
    """

    name: str = ""
    id: str = ""
    status: str = ""
    restarts: int | None = None
    policy: str = ""
    exit_code: int | None = None
    started_s: float | None = None
    finished_s: float | None = None
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """What answers at url. health_status: of /health, 0 when nobody answered. running, waiting: requests.

    token: "made", "skipped" (the counters moved by themselves), "none" (no token in time), "refused" (it wants an API key),
    "error" or "" (not asked). token_s: how long it took. generated_tokens: the server's own counter since its start.
    served_tok_per_s: all streams together, the mean since the check before.
    """

    url: str = ""
    health_status: int | None = None
    token: str = ""
    token_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    generated_tokens: float | None = None
    served_tok_per_s: float | None = None
    kv_cache_used: float | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of a cluster that this host serves. cluster: its name, "" for a server of its own.

    rank, world: as it was deployed. group_rank, group_world: as the running group gave them, None
    until it exists. transport: rdma, sockets, gloo or unknown. stage: how far its log is; failure: why its log says that it
    ended; error: why its log tells nothing.
    """

    cluster: str = ""
    rank: int | None = None
    world: int | None = None
    group_rank: int | None = None
    group_world: int | None = None
    transport: str = ""
    stage: str = ""
    failure: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """The last measured decode rate of one stream. measured_s: when, seconds since the epoch. verdict: `smoke_test`'s."""

    tok_per_s: float | None = None
    baseline_tok_per_s: float | None = None
    ttft_s: float | None = None
    verdict: str = ""
    measured_s: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The host's memory (/proc/meminfo), the disk of the user's home, and how long it is up."""

    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_free_bytes: int | None = None
    uptime_s: float | None = None
    #: available when the server was verified, and the lowest since, as the guard of the service has seen it
    mem_verified_bytes: int | None = None
    mem_lowest_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """What nvidia-smi says at the moment of the check."""

    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Serves:
    """What the last good state says is served here. image: "repo:tag@sha256:...". since_s: when it was verified."""

    image: str = ""
    engine_version: str = ""
    model: str = ""
    commit: str = ""
    served_name: str = ""
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the check itself took. cpu_s: of its process and of the programs that it ran."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """One check.

    time_s, since_s: seconds since the epoch, of the check and of the last change of state. state: what it is after damping.
    seen: what this check alone saw, and why: that in one sentence. before: the state of the check before, "" when there was none.
    cure: what helps. flapping: it comes and goes; nobody is notified of good news until they have held. busy: who works on the
    host ("" nobody); then nothing was probed. drift: fields in which the running container differs from the last good state,
    "image" and "model FILE" among them. healed: what was done about it, "" nothing. every_s: how often it is scheduled, 0 by
    hand.
    """

    time_s: float
    state: State
    seen: State
    since_s: float
    before: str = ""
    why: str = ""
    cure: Cure = ""
    flapping: bool = False
    busy: str = ""
    evidence: tuple[Evidence, ...] = ()
    container: Container = field(default_factory=Container)
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=Gpu)
    serves: Serves = field(default_factory=Serves)
    drift: tuple[str, ...] = ()
    healed: str = ""
    every_s: float = 0.0
    cost: Cost = field(default_factory=Cost)
    sandbox: bool = False
    schema: int = SCHEMA

    @property
    def changed(self) -> bool:
        """Whether this check changed the state. The first check of a host changes nothing."""
        return self.before not in ("", self.state)

    @property
    def sentence(self) -> str:
        """Why it is in this state; what a single check saw and is not confirmed yet is called that."""
        return self.why if self.state == self.seen else f"this check: {self.seen} (not yet confirmed): {self.why}"

    def late(self, now_s: float) -> bool:
        """Whether a scheduled check is overdue: three were missed, or its time is still to come, by a wrong clock."""
        return self.every_s > 0 and abs(now_s - self.time_s) > speaks_s(self.every_s)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `from_json` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """The record again. Fields that a newer schema added are left out. Raises ValueError for what is no record."""
        return _of(fitted(data, _OWN, "the record of a check"))


#: the fields of a record that are records themselves
_PARTS: dict[str, Any] = {
    field.name: field.default_factory
    for field in dataclasses.fields(Record)
    if field.default_factory is not dataclasses.MISSING
}


def differs(drift: Sequence[str]) -> str:
    """A record's drift for a screen: "--max-num-seqs, 14 files of its model: a, b, c and 11 more"."""
    files = [item.removeprefix(FILE) for item in drift if item.startswith(FILE)]
    fields = [item for item in drift if not item.startswith(FILE)]
    model = f"{len(files)} files of its model: " if len(files) > 1 else FILE
    return ", ".join(filter(None, (first(fields, 6), model + first(files, 3) if files else "")))


def speaks_s(every_s: float) -> float:
    """How long a check speaks for, seconds, when no other follows. every_s: of its schedule, 0 by hand."""
    return 3 * every_s if every_s else ON_DEMAND_S


def checked(data: Any) -> Record:
    """As `Record.from_json`, of a record that another machine wrote: its texts are lines that can be shown."""
    return _of(fitted(data, _of_another(), "the record of a check"))


def _of(data: dict[str, Any]) -> Record:
    """The record of what fits."""
    parts = {name: built(kind, data[name]) for name, kind in _PARTS.items() if name in data}
    evidence = tuple(built(Evidence, row) for row in data.get("evidence", ()))
    return built(Record, data, **parts, evidence=evidence, drift=tuple(data.get("drift", ())))


def _shape(words: Shape) -> dict[str, Shape]:
    """The shape of a record whose texts have this one."""
    kinds: dict[Any, Shape] = {
        **dict.fromkeys(("str", "State", "Level", "Cure"), words),
        "bool": bool,
        "float": moment,  # no duration is longer than the calendar
        "float | None": (None, number),
        "int": integer,
        "int | None": (None, integer),
        "tuple[str, ...]": [words],
    }

    def fields(kind: type[Any]) -> dict[str, Shape]:
        """By how a field's type is written here. One that has a value of its own may be missing."""
        found = {}
        for item in dataclasses.fields(kind):
            needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            found[item.name] = kinds[item.type] if needed else Usual(kinds[item.type])
        return found

    kinds["tuple[Evidence, ...]"] = [fields(Evidence)]
    kinds |= {part.__name__: fields(part) for part in _PARTS.values()}
    return fields(Record)


_OWN = _shape(text)


@functools.cache
def _of_another() -> dict[str, Shape]:
    return _shape(line)

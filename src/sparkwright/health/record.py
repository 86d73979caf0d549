"""The record of one check: `health.json` holds the latest, each line of `health.jsonl` one of the history.

Standard library only, so that both sides read it with the same code. An unknown value is null, never a guess.
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
#: how long a check on demand is valid, seconds
ON_DEMAND_S = 600.0

#: of one host, from best to worst: of several findings, and of several checks of one time, the worst counts. For several hosts
#: the exit codes decide (app/outcome.py), where a starting host is no failure
State = Literal["ok", "asleep", "unknown", "degraded", "starting", "down", "crash-looping", "stalled", "wedged"]
STATES: tuple[State, ...] = get_args(State)

#: prefix of a model's file in a record's drift
FILE = "model "


def severity(state: str) -> int:
    """Return how bad a state is: 0 is ok. A state that this version does not know is as bad as `unknown`."""
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
    """The server's container, as the engine inspects it."""

    name: str = ""
    id: str = ""
    #: Docker's status; "absent" if there is no container
    status: str = ""
    #: Docker's count since the last manual start
    restarts: int | None = None
    policy: str = ""
    #: None while it runs: Docker forgets it then
    exit_code: int | None = None
    #: seconds since the epoch
    started_s: float | None = None
    #: end of the previous start, seconds since the epoch; also set while it runs again
    finished_s: float | None = None
    #: this is the very container of the last good state
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """The answers of the server at a URL."""

    url: str = ""
    #: HTTP status of /health; 0 if nothing answered
    health_status: int | None = None
    #: "made", "skipped" (the counters moved by themselves), "none" (no token in time), "refused" (it wants an API key), "error"
    #: or "" (not asked)
    token: str = ""
    #: how long the token took, seconds
    token_s: float | None = None
    #: running requests
    running: float | None = None
    #: waiting requests
    waiting: float | None = None
    #: the server's own counter since its start
    generated_tokens: float | None = None
    #: all streams together, the mean since the previous check
    served_tok_per_s: float | None = None
    kv_cache_used: float | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of a cluster that this host serves."""

    #: name of the cluster; "" for a server of its own
    cluster: str = ""
    #: as it was deployed
    rank: int | None = None
    #: as it was deployed
    world: int | None = None
    #: as the running group assigned it; None until the group exists
    group_rank: int | None = None
    #: as the running group has it; None until the group exists
    group_world: int | None = None
    #: rdma, sockets, gloo or unknown
    transport: str = ""
    #: the last stage in its log
    stage: str = ""
    #: why it exited, according to its log
    failure: str = ""
    #: why its log gives no answer
    error: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """The last measured decode rate of one stream."""

    tok_per_s: float | None = None
    baseline_tok_per_s: float | None = None
    ttft_s: float | None = None
    #: the verdict of `smoke_test`
    verdict: str = ""
    #: when it was measured, seconds since the epoch
    measured_s: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The host's memory (/proc/meminfo), the disk of the user's home, and its uptime."""

    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_free_bytes: int | None = None
    uptime_s: float | None = None
    #: available when the server was verified, and the lowest since, as the guard of the service measured it
    mem_verified_bytes: int | None = None
    mem_lowest_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """The values that nvidia-smi returned at the time of the check."""

    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Serves:
    """The image and model that the last good state serves."""

    #: "repo:tag@sha256:..."
    image: str = ""
    engine_version: str = ""
    model: str = ""
    commit: str = ""
    served_name: str = ""
    #: when it was verified, seconds since the epoch
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the check itself."""

    wall_s: float = 0.0
    #: of its process and of the programs that it ran
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one check."""

    #: time of the check, seconds since the epoch
    time_s: float
    #: the state after damping
    state: State
    #: the state that this check alone saw
    seen: State
    #: time of the last change of state, seconds since the epoch
    since_s: float
    #: the state of the previous check; "" if there was none
    before: str = ""
    #: the reason for `seen`, one sentence
    why: str = ""
    #: what helps
    cure: Cure = ""
    #: it alternates between good and bad; good news are not notified until they have held
    flapping: bool = False
    #: the run that holds the host's lock, then nothing was probed; "" for none
    busy: str = ""
    evidence: tuple[Evidence, ...] = ()
    container: Container = field(default_factory=Container)
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=Gpu)
    serves: Serves = field(default_factory=Serves)
    #: fields in which the running container differs from the last good state, "image" and "model FILE" among them
    drift: tuple[str, ...] = ()
    #: what was done about it; "" for nothing
    healed: str = ""
    #: interval of the scheduled checks; 0 for a check on demand
    every_s: float = 0.0
    cost: Cost = field(default_factory=Cost)
    sandbox: bool = False
    schema: int = SCHEMA

    @property
    def changed(self) -> bool:
        """Return True if this check changed the state. The first check of a host changes nothing."""
        return self.before not in ("", self.state)

    @property
    def sentence(self) -> str:
        """Return the reason for the state; the finding of a single check is marked as not yet confirmed."""
        return self.why if self.state == self.seen else f"this check: {self.seen} (not yet confirmed): {self.why}"

    def late(self, now_s: float) -> bool:
        """Return True if a scheduled check is overdue: three were missed, or its time is in the future because of a wrong
        clock."""
        return self.every_s > 0 and abs(now_s - self.time_s) > speaks_s(self.every_s)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """Return the record of plain JSON, without the fields of a newer schema. Raises ValueError if it is not one."""
        return _of(fitted(data, _OWN, "the record of a check"))


#: the fields of a record that are records themselves
_PARTS: dict[str, Any] = {
    field.name: field.default_factory
    for field in dataclasses.fields(Record)
    if field.default_factory is not dataclasses.MISSING
}


def differs(drift: Sequence[str]) -> str:
    """Return a record's drift for a screen: "--max-num-seqs, 14 files of its model: a, b, c and 11 more"."""
    files = [item.removeprefix(FILE) for item in drift if item.startswith(FILE)]
    fields = [item for item in drift if not item.startswith(FILE)]
    model = f"{len(files)} files of its model: " if len(files) > 1 else FILE
    return ", ".join(filter(None, (first(fields, 6), model + first(files, 3) if files else "")))


def speaks_s(every_s: float) -> float:
    """Return how long a check is valid if no other follows, seconds. every_s: of its schedule, 0 on demand."""
    return 3 * every_s if every_s else ON_DEMAND_S


def checked(data: Any) -> Record:
    """Return `Record.from_json` of a record that another machine wrote, with texts that are safe to show."""
    return _of(fitted(data, _of_another(), "the record of a check"))


def _of(data: dict[str, Any]) -> Record:
    """Return the record of the valid fields."""
    parts = {name: built(kind, data[name]) for name, kind in _PARTS.items() if name in data}
    evidence = tuple(built(Evidence, row) for row in data.get("evidence", ()))
    return built(Record, data, **parts, evidence=evidence, drift=tuple(data.get("drift", ())))


def _shape(words: Shape) -> dict[str, Shape]:
    """Return the shape of a record whose texts have this shape."""
    kinds: dict[Any, Shape] = {
        **dict.fromkeys(("str", "State", "Level", "Cure"), words),
        "bool": bool,
        "float": moment,  # durations, too, are below the calendar's limit
        "float | None": (None, number),
        "int": integer,
        "int | None": (None, integer),
        "tuple[str, ...]": [words],
    }

    def fields(kind: type[Any]) -> dict[str, Shape]:
        """Return the shapes of a class's fields by their annotation. A field with a default may be missing."""
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

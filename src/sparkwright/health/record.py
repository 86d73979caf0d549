"""The record of a check: `health.json` holds the latest, and `health.jsonl` the history with one record per line.

It uses only the standard library, so that both sides can read it with the same code. Unknown values are null and never guessed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sparkwright.trust.shapes import (
    OptionalField,
    Shape,
    build_dataclass,
    integer,
    line,
    moment,
    number,
    text,
    validate,
)
from sparkwright.visible import join_first

SCHEMA = 1

#: files in the host's state folder, ~/.local/state/sparkwright
LATEST_FILE = "health.json"
HISTORY_FILE = "health.jsonl"
#: number of rotated files of the history, oldest last: health.jsonl.1, health.jsonl.2 ...
ROTATED_FILES = 4
ROTATE_BYTES = 4 * 2**20
#: how long a check on demand is valid, in seconds
ON_DEMAND_S = 600.0

#: states of a host, from best to worst: the worst of several findings, or of several checks at the same time, counts. For
#: several hosts the exit codes decide (app/outcome.py), where a starting host is not a failure
State = Literal["ok", "asleep", "unknown", "degraded", "starting", "down", "crash-looping", "stalled", "wedged"]
STATES: tuple[State, ...] = get_args(State)

#: prefix of model files in a record's drift
MODEL_FILE_PREFIX = "model "


def severity(state: str) -> int:
    """Return how bad a state is, where 0 is ok. A state that this version does not know is as bad as `unknown`."""
    return STATES.index(state) if state in STATES else STATES.index("unknown")


Level = Literal["ok", "warn", "bad", "unknown"]
#: the cure: a restart, cutting the AC power, a new deploy, or a person; "" if nothing has to be done
Cure = Literal["", "restart", "power", "deploy", "person"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of one question. check: its name, see judging/questions.py. message: a sentence with figures and units."""

    check: str
    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class Container:
    """The server's container, as the Docker Engine reports it."""

    name: str = ""
    id: str = ""
    #: Docker's status; "absent" if there is no container
    status: str = ""
    #: number of restarts by Docker since the last manual start
    restarts: int | None = None
    policy: str = ""
    #: exit code; None while it is running, as Docker then no longer reports it
    exit_code: int | None = None
    #: time of the start, in seconds since the epoch
    started_s: float | None = None
    #: time of the last exit, in seconds since the epoch; also set while it is running again
    finished_s: float | None = None
    #: True if this is the container of the last good state
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """A server's answers."""

    url: str = ""
    #: HTTP status of /health; 0 if nothing answered
    health_status: int | None = None
    #: "made", "skipped" (the counters were moving anyway), "none" (no token in time), "refused" (it requires an API key), "error"
    #: or "" (not requested)
    token: str = ""
    #: how long the token took, in seconds
    token_s: float | None = None
    #: number of running requests
    running: float | None = None
    #: number of waiting requests
    waiting: float | None = None
    #: tokens generated since the server's start, by its own counter
    generated_tokens: float | None = None
    #: mean throughput of all streams since the previous check
    served_tok_per_s: float | None = None
    kv_cache_used: float | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """This host's rank in a cluster."""

    #: name of the cluster; "" for a server on its own
    cluster: str = ""
    #: deployed rank
    rank: int | None = None
    #: deployed number of ranks
    world: int | None = None
    #: rank in the running group; None until the group exists
    group_rank: int | None = None
    #: number of ranks in the running group; None until the group exists
    group_world: int | None = None
    #: rdma, sockets, gloo or unknown
    transport: str = ""
    #: last stage in the log
    stage: str = ""
    #: reason for the exit, according to the log
    failure: str = ""
    #: reason why the log gives no answer
    error: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """The last measured decode rate of one stream."""

    tok_per_s: float | None = None
    baseline_tok_per_s: float | None = None
    ttft_s: float | None = None
    #: verdict of `smoke_test`
    verdict: str = ""
    #: time of the measurement, in seconds since the epoch
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
    #: available memory when the server was verified, and the lowest since then, as measured by the memory guard
    mem_verified_bytes: int | None = None
    mem_lowest_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """The values that nvidia-smi reported at the time of the check."""

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
    #: time of the verification, in seconds since the epoch
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the check itself."""

    wall_s: float = 0.0
    #: CPU time of the check's process and of the programs that it ran
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one check."""

    #: time of the check, in seconds since the epoch
    time_s: float
    #: state after damping
    state: State
    #: state found by this check alone
    seen: State
    #: time of the last change of state, in seconds since the epoch
    since_s: float
    #: state at the previous check; "" if there was none
    before: str = ""
    #: reason for `seen`, as a sentence
    why: str = ""
    #: the cure
    cure: Cure = ""
    #: True if it alternates between good and bad; a good state is then only notified after it has held
    flapping: bool = False
    #: the run that holds the host's lock, in which case nothing was probed; "" for none
    busy: str = ""
    evidence: tuple[Evidence, ...] = ()
    container: Container = field(default_factory=Container)
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=Gpu)
    serves: Serves = field(default_factory=Serves)
    #: fields in which the running container differs from the last good state, including "image" and "model FILE"
    drift: tuple[str, ...] = ()
    #: healing action that was taken; "" for none
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
        """Return the reason for the state, marking a finding that is not confirmed yet."""
        return self.why if self.state == self.seen else f"this check: {self.seen} (not yet confirmed): {self.why}"

    def is_overdue(self, now_s: float) -> bool:
        """Return True if a scheduled check is overdue.

        That is the case after three missed checks, or if its time is in the future because of a wrong clock.
        """
        return self.every_s > 0 and abs(now_s - self.time_s) > validity_s(self.every_s)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON, the inverse of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """Parse a record from plain JSON, ignoring fields of a newer schema. Raises ValueError for an invalid record."""
        return _build_record(validate(data, _OWN_SHAPE, "the record of a check"))


#: fields of a record that are themselves dataclasses
_PARTS: dict[str, Any] = {
    field.name: field.default_factory
    for field in dataclasses.fields(Record)
    if field.default_factory is not dataclasses.MISSING
}


def format_drift(drift: Sequence[str]) -> str:
    """Return a record's drift as text: "--max-num-seqs, 14 files of its model: a, b, c and 11 more"."""
    files = [item.removeprefix(MODEL_FILE_PREFIX) for item in drift if item.startswith(MODEL_FILE_PREFIX)]
    fields = [item for item in drift if not item.startswith(MODEL_FILE_PREFIX)]
    model = f"{len(files)} files of its model: " if len(files) > 1 else MODEL_FILE_PREFIX
    return ", ".join(filter(None, (join_first(fields, 6), model + join_first(files, 3) if files else "")))


def validity_s(every_s: float) -> float:
    """Return how long a check is valid if no other follows, in seconds. every_s: interval of its schedule; 0 on demand."""
    return 3 * every_s if every_s else ON_DEMAND_S


def parse_foreign_record(data: Any) -> Record:
    """Parse a record that another machine wrote, as `Record.from_json` does, requiring texts that are safe to show."""
    return _build_record(validate(data, _foreign_shape(), "the record of a check"))


def _build_record(data: dict[str, Any]) -> Record:
    """Construct a record from validated fields."""
    parts = {name: build_dataclass(kind, data[name]) for name, kind in _PARTS.items() if name in data}
    evidence = tuple(build_dataclass(Evidence, row) for row in data.get("evidence", ()))
    return build_dataclass(Record, data, **parts, evidence=evidence, drift=tuple(data.get("drift", ())))


def _record_shape(text_shape: Shape) -> dict[str, Shape]:
    """Return the shape of a record, with the given shape for its texts."""
    shapes: dict[Any, Shape] = {
        **dict.fromkeys(("str", "State", "Level", "Cure"), text_shape),
        "bool": bool,
        "float": moment,  # durations are below the calendar's limit, too
        "float | None": (None, number),
        "int": integer,
        "int | None": (None, integer),
        "tuple[str, ...]": [text_shape],
    }

    def fields(kind: type[Any]) -> dict[str, Shape]:
        """Return the shapes of a class's fields, by their annotations. Fields with a default may be missing."""
        field_shapes = {}
        for item in dataclasses.fields(kind):
            is_required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            field_shapes[item.name] = shapes[item.type] if is_required else OptionalField(shapes[item.type])
        return field_shapes

    shapes["tuple[Evidence, ...]"] = [fields(Evidence)]
    shapes |= {part.__name__: fields(part) for part in _PARTS.values()}
    return fields(Record)


_OWN_SHAPE = _record_shape(text)


@functools.cache
def _foreign_shape() -> dict[str, Shape]:
    return _record_shape(line)

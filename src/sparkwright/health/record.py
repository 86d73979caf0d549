"""The record of a check: `health.json` contains the latest, and `health.jsonl` the history with one record per line.

The laptop and the host use the same code, which needs only the standard library. Unknown values are null and never guessed.
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
MAX_ROTATED_FILES = 4
MAX_HISTORY_FILE_BYTES = 4 * 2**20
#: how long a check on demand is valid, in seconds
ON_DEMAND_VALIDITY_S = 600.0

#: states of a host, from best to worst. The worst of several findings or servers counts. app/outcome.py determines the
#: exit code for several hosts and does not count a starting host as a failure
State = Literal["ok", "asleep", "unknown", "degraded", "starting", "down", "crash-looping", "stalled", "wedged"]
STATES: tuple[State, ...] = get_args(State)
Level = Literal["ok", "warn", "bad", "unknown"]
#: what is required: a restart, cutting the AC power, a new deploy, or a person; "" for nothing
Cure = Literal["", "restart", "power", "deploy", "gateway", "person"]

#: prefix of model files in a record's drift
MODEL_FILE_PREFIX = "model "
#: start of the reason while the state that the last check found is not confirmed yet
UNCONFIRMED_PREFIX = "this check: "


def severity(state: str) -> int:
    """Return the rank of a state, from 0 for ok to the worst. An unknown name, from a newer version, ranks as `unknown`."""
    return STATES.index(state) if state in STATES else STATES.index("unknown")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The answer to one question."""

    #: name of the question, see judging/questions.py
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
    #: exit code of the last exit; None while the container is running, because Docker does not report it then
    exit_code: int | None = None
    #: time of the start, in seconds since the epoch
    started_s: float | None = None
    #: time of the last exit, in seconds since the epoch; also set while the container is running again
    finished_s: float | None = None
    #: True if this is the container of the last verified state
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """A server's answers."""

    url: str = ""
    #: HTTP status of /health; 0 if nothing answered, None if it was not requested
    health_status: int | None = None
    #: result of the test request: "made", "skipped" (the counters already showed progress), "none" (no token in time), "refused"
    #: (the server requires an API key), "error" or "" (not requested)
    token: str = ""
    #: how long the token took, in seconds
    token_s: float | None = None
    #: number of running requests
    running: float | None = None
    #: number of waiting requests
    waiting: float | None = None
    #: tokens generated since the server's start
    generated_tokens: float | None = None
    #: mean throughput of all streams since the previous check
    served_tok_per_s: float | None = None
    kv_cache_used: float | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """This host's rank in a cluster."""

    #: name of the cluster; empty if the server is not in a cluster
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
    #: error while reading the log
    error: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """The last measured decode rate of a single stream."""

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
    #: available memory when the server was verified, and the lowest since then; measured by the memory guard
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
    """The image and model of the last verified state."""

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
    """The resources that the check used."""

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
    #: state according to this check alone
    seen: State
    #: time of the last change of state, in seconds since the epoch
    since_s: float
    #: state at the previous check; "" if there was none
    before: str = ""
    #: reason for `seen`
    why: str = ""
    cure: Cure = ""
    #: True if the state alternates between good and bad; a notification of a good state then waits for several checks
    flapping: bool = False
    #: the run that held the host's lock, so that the server was not probed; empty if there was none
    busy: str = ""
    evidence: tuple[Evidence, ...] = ()
    container: Container = field(default_factory=Container)
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=Gpu)
    serves: Serves = field(default_factory=Serves)
    #: fields in which the running container differs from the last verified state, including "image" and "model FILE"
    drift: tuple[str, ...] = ()
    #: outcome of a restart, or the reason why there was none; empty if a restart would not help or healing is disabled
    healed: str = ""
    #: interval of the scheduled checks; 0 for a check on demand
    every_s: float = 0.0
    cost: Cost = field(default_factory=Cost)
    sandbox: bool = False
    schema: int = SCHEMA

    @property
    def changed(self) -> bool:
        """Return True if this check changed the reported state; False for a host's first check."""
        return self.before not in ("", self.state)

    @property
    def sentence(self) -> str:
        """Return the reason for the state, or for this check's state if it is not confirmed yet."""
        return (
            self.why if self.state == self.seen else f"{UNCONFIRMED_PREFIX}{self.seen} (not yet confirmed): {self.why}"
        )

    def is_overdue(self, now_s: float) -> bool:
        """Return True if three scheduled checks are missing, or if a wrong clock puts this one in the future."""
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
    files = [name.removeprefix(MODEL_FILE_PREFIX) for name in drift if name.startswith(MODEL_FILE_PREFIX)]
    fields = [name for name in drift if not name.startswith(MODEL_FILE_PREFIX)]
    file_prefix = f"{len(files)} files of its model: " if len(files) > 1 else MODEL_FILE_PREFIX
    return ", ".join(filter(None, (join_first(fields, 6), file_prefix + join_first(files, 3) if files else "")))


def validity_s(every_s: float) -> float:
    """Return how long a check is valid, in seconds. every_s: interval of the scheduled checks; 0 for a check on demand."""
    return 3 * every_s if every_s else ON_DEMAND_VALIDITY_S


def parse_foreign_record(data: Any) -> Record:
    """Parse a record from another machine like `Record.from_json`; also require single lines without control characters."""
    return _build_record(validate(data, _foreign_shape(), "the record of a check"))


def _build_record(data: dict[str, Any]) -> Record:
    """Construct a record from validated fields."""
    parts = {name: build_dataclass(kind, data[name]) for name, kind in _PARTS.items() if name in data}
    evidence = tuple(build_dataclass(Evidence, row) for row in data.get("evidence", ()))
    return build_dataclass(Record, data, **parts, evidence=evidence, drift=tuple(data.get("drift", ())))


def _record_shape(text_shape: Shape) -> dict[str, Shape]:
    """Return the shape of a record. text_shape: shape of its texts."""
    shapes: dict[Any, Shape] = {
        **dict.fromkeys(("str", "State", "Level", "Cure"), text_shape),
        "bool": bool,
        "float": moment,  # durations are also below the limit of a time
        "float | None": (None, number),
        "int": integer,
        "int | None": (None, integer),
        "tuple[str, ...]": [text_shape],
    }

    def fields(kind: type[Any]) -> dict[str, Shape]:
        """Return the shapes of a class's fields, by their annotations. Fields with a default may be missing."""
        field_shapes = {}
        for member in dataclasses.fields(kind):
            is_required = member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING
            field_shapes[member.name] = shapes[member.type] if is_required else OptionalField(shapes[member.type])
        return field_shapes

    shapes["tuple[Evidence, ...]"] = [fields(Evidence)]
    shapes |= {part.__name__: fields(part) for part in _PARTS.values()}
    return fields(Record)


_OWN_SHAPE = _record_shape(text)


@functools.cache
def _foreign_shape() -> dict[str, Shape]:
    return _record_shape(line)

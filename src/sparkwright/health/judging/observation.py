"""A check's observation of a host, and the limits for its evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkwright import defaults
from sparkwright.health.record import Container, Gpu, Machine, Rank, Server, Speed
from sparkwright.protocol.memory_level import MemoryLevel
from sparkwright.units import GIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a healthy server and host."""

    token_s: float = defaults.TOKEN_TIMEOUT_S
    #: how long a server may generate nothing, longer than the longest prefill (128K tokens take about 52 s on a GB10)
    frozen_s: float = 60.0
    #: a start may take this many times as long as the last measured one, but at least `ready_floor_s`
    ready_factor: float = 2.0
    ready_floor_s: float = 30.0
    #: how long a start may take if none was measured, in seconds
    ready_s: float = defaults.READY_TIMEOUT_S
    available_bytes: int = 2 * GIB
    swap_used: float = 0.9
    disk_free_bytes: int = 5 * GIB
    temperature_c: float = defaults.HOT_GPU_C
    #: with `low_w` and `low_mhz`, the sign of a power supply that negotiated too little power
    busy_percent: float = 90.0
    low_w: float = 40.0
    low_mhz: float = 1400.0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The state of the periodic full hash of the model's files."""

    #: number of verified files; 0 if they are not recorded
    files: int
    #: number of files read in this round
    read: int
    wrong: tuple[str, ...]
    paused: str
    #: seconds since the last complete round; None before the first
    age_s: float | None
    #: True if no round was completed within twice the interval
    late: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """A check's observation of a host.

    Missing values are never guessed: they are None, with the reason in a field that ends in `_error`.
    """

    time_s: float
    busy: str = ""
    #: True if a server was ever verified on this host
    known: bool = True
    engine_error: str = ""
    container: Container = field(default_factory=Container)
    #: restart policy of the last good state
    policy: str = ""
    #: reason why the restarts count as a crash loop; empty if they do not
    loop: str = ""
    #: reason why an earlier check disabled the restart policy; empty if none did
    broken: str = ""
    #: the server whose turn it is, if this one takes turns in memory; empty if it is this server's turn or it takes no turns
    asleep: str = ""
    #: the wake service's message about this server's turn; empty for none
    wake: str = ""
    #: id of the run that stopped this container and did not start it again; empty for none
    stopped: str = ""
    #: True if the server has answered since its last start
    answered: bool = False
    #: duration of the last measured start, in seconds; None if there is none
    ready_s: float | None = None
    #: kind of this server's answers: a token, a vector, a score
    gives: str = "token"
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    #: True if /health answers as the engine does while it is not ready yet
    loading: bool = False
    engine_version: str = ""
    #: value of a counter that moves while anything is generated
    heartbeat: float | None = None
    #: the server's answer instead of a token
    error: str = ""
    #: how long no token was generated while requests were running, over two checks, in seconds
    frozen_s: float | None = None
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    #: samples of the GPU; two, taken a moment apart, if the first is suspicious
    gpus: tuple[Gpu, ...] = ()
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    #: problem of the gateway on this host; empty for none, None if the host has no gateway
    gateway: str | None = None
    #: how the host went down while the server started or served; empty if it did not, or if the server was verified since
    lost: str = ""
    #: reason why the memory guard stopped this container; empty if it did not
    saved: str = ""
    #: memory since the server was verified
    level: MemoryLevel = field(default_factory=MemoryLevel)
    #: state of the periodic hash of the model's files; None if it is not enabled
    model_files: ModelFiles | None = None

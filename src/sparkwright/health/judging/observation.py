"""A check's observation of a host, and the limits for its evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkwright import defaults
from sparkwright.health.record import Container, Gpu, Machine, Rank, Server, Speed
from sparkwright.protocol.memory_level import MemoryLevel
from sparkwright.units import GIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a healthy server and host stay within."""

    #: how long a test token may take
    token_s: float = defaults.TOKEN_TIMEOUT_S
    #: time without a token that counts as a stall; longer than the longest prefill (128K tokens take about 52 s on a GB10)
    frozen_s: float = 60.0
    #: a start may take this many times as long as the last measured one, or `ready_floor_s` if that is longer
    ready_factor: float = 2.0
    ready_floor_s: float = 30.0
    #: how long a start may take if none was measured, in seconds
    ready_s: float = defaults.READY_TIMEOUT_S
    #: minimum available memory
    available_bytes: int = 2 * GIB
    #: maximum share of swap in use
    swap_used: float = 0.9
    disk_free_bytes: int = 5 * GIB
    temperature_c: float = defaults.HOT_GPU_C
    #: a GPU busier than this, below `low_w` and `low_mhz`, has a power supply that negotiated too little power
    busy_percent: float = defaults.BUSY_GPU_PERCENT
    low_w: float = 40.0
    low_mhz: float = 1400.0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The state of the periodic full hash of the model's files."""

    #: number of verified files; 0 if they are not recorded
    file_count: int
    #: number of files hashed in this round
    hashed_count: int
    #: files whose content differs from the verified content
    changed_paths: tuple[str, ...]
    #: empty if hashing is not paused
    pause_reason: str
    #: seconds since the last complete round; None before the first
    age_s: float | None
    #: True if no round was completed within twice the interval
    is_late: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """A check's observation of a host.

    Missing values are never guessed: they are None, with the reason in a field that ends in `_error`.
    """

    time_s: float
    #: the run in progress on the host; empty if there is none
    active_run: str = ""
    #: True if a server has ever been verified on this host
    has_verified_server: bool = True
    #: error of the Docker Engine
    engine_error: str = ""
    container: Container = field(default_factory=Container)
    #: restart policy of the last good state
    restart_policy: str = ""
    #: reason why the restarts count as a crash loop; empty if they do not
    crash_loop_reason: str = ""
    #: reason why an earlier check stopped a crash loop of this container; empty if none did
    loop_stop_reason: str = ""
    #: the server whose turn in memory it is; empty if it is this server's turn, or if it takes no turns
    awake_server: str = ""
    #: the wake service's message about this server's turn; empty if there is none
    wake_message: str = ""
    #: id of the run that stopped this container and did not start it again; empty if none did
    stopping_run: str = ""
    #: True if the server has answered since its last start
    has_answered: bool = False
    #: duration of the last start, in seconds; None if it was not measured
    ready_s: float | None = None
    #: what this server returns: "token", "vector" or "score"
    answer_noun: str = "token"
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    #: True if /health returns the status that means the engine is loading
    loading: bool = False
    engine_version: str = ""
    #: value of a counter that increases while tokens are generated
    heartbeat: float | None = None
    #: error of the request to /health or of the test request
    error: str = ""
    #: how long no token was generated while requests were running, in seconds, measured over two checks; None without a stall
    frozen_s: float | None = None
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    #: samples of the GPU: a second one follows half a second later if the first is suspicious
    gpus: tuple[Gpu, ...] = ()
    #: see `Record`
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    #: problem of the gateway on this host; empty if it has none, None if the host has no gateway
    gateway_problem: str | None = None
    #: how the host went down while the server was starting or serving; empty if it did not, or a server has been verified since
    host_outage: str = ""
    #: reason why the memory guard stopped this container; empty if it did not
    guard_stop_reason: str = ""
    #: available memory since the server was verified
    memory_level: MemoryLevel = field(default_factory=MemoryLevel)
    #: state of the periodic hash of the model's files; None if it is not enabled
    model_files: ModelFiles | None = None

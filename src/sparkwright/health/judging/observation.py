"""The observation of a host by one check, and the limits of a good one."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkwright import defaults
from sparkwright.health.record import Container, Gpu, Machine, Rank, Server, Speed
from sparkwright.protocol.memory_level import Level
from sparkwright.units import GIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a healthy server and host."""

    token_s: float = defaults.TOKEN_S
    #: longer than the longest prefill (128K tokens take about 52 s on a GB10)
    frozen_s: float = 60.0
    #: a start may take this many times the last measured one, but never less than ready_floor_s
    ready_factor: float = 2.0
    ready_floor_s: float = 30.0
    #: how long a start may take if none was measured, seconds
    ready_s: float = defaults.READY_S
    available_bytes: int = 2 * GIB
    swap_used: float = 0.9
    disk_free_bytes: int = 5 * GIB
    temperature_c: float = 90.0
    #: together with low_w and low_mhz: the sign of a power supply that negotiated too little
    busy_percent: float = 90.0
    low_w: float = 40.0
    low_mhz: float = 1400.0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The state of the periodic full hash of the model's files."""

    #: number of verified files; 0 if they are not recorded
    files: int
    #: number of files that this round has read
    read: int
    wrong: tuple[str, ...]
    paused: str
    #: seconds since the last whole round; None before the first
    age_s: float | None
    #: no round was completed within twice the interval
    late: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation of a host by one check.

    A missing value is explicit, never guessed: None, or a sentence in the field that ends in `_error`.
    """

    time_s: float
    busy: str = ""
    #: a server was verified on this host once
    known: bool = True
    engine_error: str = ""
    container: Container = field(default_factory=Container)
    #: the restart policy of the last good state
    policy: str = ""
    #: why its restarts are a loop; empty if they are not
    loop: str = ""
    #: why an earlier check disabled its restart policy; empty if none did
    broken: str = ""
    #: the server whose turn it is, if this one takes turns in memory; empty if it is this one's turn, or it takes none
    asleep: str = ""
    #: what the wake service says about this server's turn; empty for nothing
    wake: str = ""
    #: the run of sparkwright that stopped this container and did not start it again; empty for none
    stopped: str = ""
    #: this very start has answered before
    answered: bool = False
    #: duration of the last measured start, seconds; None if there is none
    ready_s: float | None = None
    #: what one answer of this server is: a token, a vector, a score
    gives: str = "token"
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    #: its /health answers as the engine's does while it does not serve yet
    loading: bool = False
    engine_version: str = ""
    #: a counter that moves while anything is generated
    heartbeat: float | None = None
    #: the server's answer in place of a token
    error: str = ""
    #: how long no token was generated while requests ran, over two checks, seconds
    frozen_s: float | None = None
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    #: samples; a second apart if the first is suspicious
    gpus: tuple[Gpu, ...] = ()
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    #: what is wrong with the gateway of this host; empty: nothing, None: the host has none
    gateway: str | None = None
    #: how the host went down while the server started or served; empty: it did not, or the server was verified since
    lost: str = ""
    #: why the guard of the service stopped this container; empty: it did not
    saved: str = ""
    #: the memory since it was verified
    level: Level = field(default_factory=Level)
    #: the periodic hash of the model's files; None: not enabled
    model_files: ModelFiles | None = None

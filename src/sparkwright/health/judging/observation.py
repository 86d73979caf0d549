"""What one look at a host found, and where good ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkwright import defaults
from sparkwright.health.record import Container, Gpu, Machine, Rank, Server, Speed
from sparkwright.protocol.memory_level import Level
from sparkwright.units import GIB


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
class ModelFiles:
    """What is known of the periodic full hash of the model's files."""

    #: the proved files; 0 where it is not recorded which they are. read: by this round
    files: int
    read: int
    wrong: tuple[str, ...]
    paused: str
    #: seconds since the last whole round; None before the first
    age_s: float | None
    #: the round is later than twice its interval
    late: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look found. Absence is said, never guessed: None, or a sentence in the field ending in `_error`.

    gives: what one answer of this server is: a token, a vector, a score.
    known: a server was verified here once. loop: why its restarts are a loop. broken: why an earlier check took its policy.
    stopped: which of our runs stopped this container and did not start it again; empty for none.
    asleep: the server whose turn it is, where this one shares memory by turns; empty: its own, or it takes none.
    answered: this very start has answered before. ready_s: the last measured start, None when there is none.
    loading: its /health answers as its engine does while it does not serve yet.
    heartbeat: a counter that moves while anything is generated. error: what was said instead of a token. frozen_s: how long no
    token was generated while requests ran, over two looks.
    gateway: what is wrong with the gateway of this host; empty: nothing, None: it has none.
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
    asleep: str = ""
    stopped: str = ""
    answered: bool = False
    ready_s: float | None = None
    gives: str = "token"
    rank: Rank = field(default_factory=Rank)
    server: Server = field(default_factory=Server)
    loading: bool = False
    engine_version: str = ""
    heartbeat: float | None = None
    error: str = ""
    frozen_s: float | None = None
    speed: Speed = field(default_factory=Speed)
    machine: Machine = field(default_factory=Machine)
    gpus: tuple[Gpu, ...] = ()
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    gateway: str | None = None
    #: how the host went down while the server started or served; empty: it did not, or the server was verified since
    lost: str = ""
    #: why the guard of the service stopped this container; empty: it did not
    saved: str = ""
    #: the memory since it was verified
    level: Level = field(default_factory=Level)
    #: the periodic hash of the model's files; None: it is not asked for
    model_files: ModelFiles | None = None

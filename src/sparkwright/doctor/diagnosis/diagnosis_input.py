"""What was seen of a server at one moment. No I/O here; what is not known is None, empty, or a sentence in `_error`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.log.state import UNKNOWN, EngineState, Reading
from sparkwright.health.record import Container


@dataclass(frozen=True, slots=True)
class End:
    """How a container ended last. at_s: seconds since the epoch. error: why Docker could not start it."""

    code: int | None = None
    at_s: float | None = None
    out_of_memory: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of asking the server. health: the status of /health, 0 when nothing answered, None when nobody asked.

    token: as health.record.Server has it, or "ended" when the server ended at the request. waited_s: how long for a token.
    running: requests that it works on, waiting too. rate: tokens a second over all of them.
    still_s: how long no token was generated while they ran.
    """

    url: str = ""
    health: int | None = None
    token: Literal["", "made", "none", "refused", "error", "ended"] = ""
    waited_s: float = 0.0
    error: str = ""
    running: float | None = None
    rate: float | None = None
    still_s: float | None = None


@dataclass(frozen=True)
class DiagnosisInput:
    """now_s: seconds since the epoch. engine: of the container, else of the verified one. busy: the run that holds the host's
    lock, in words. cut_off: one that has no end.

    known: a server was verified here once. engine_error: why no answer from the Docker Engine, engine_fix: what to do.
    log: of the present start, None where it could not be read. failure: why the start before it ended, or this one if it did;
    last_line: the last of that log. loop: why its restarts are a loop. broken: why an earlier check stopped it.
    asleep: the server whose turn it is in place of this one's; empty for none.
    allowed_s: how long a start may take; ready_s: the last measured one. listener: who has the port that a container, which
    does not run, would publish. drift: what differs from the verified state.
    """

    now_s: float
    name: str = ""
    busy: str = ""
    cut_off: str = ""
    known: bool = False
    engine_error: str = ""
    engine_fix: str = ""
    box: Container = field(default_factory=Container)
    inspected: Mapping[str, Any] = field(default_factory=dict)
    end: End = field(default_factory=End)
    log: EngineState | None = None
    failure: Reading = UNKNOWN
    last_line: str = ""
    loop: str = ""
    broken: str = ""
    asleep: str = ""
    #: when the host booted, seconds since the epoch
    booted_s: float | None = None
    #: the sentence about a host that went down with this server; empty for none
    lost: str = ""
    allowed_s: float = 0.0
    ready_s: float | None = None
    port: int | None = None
    listener: str = ""
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    probe: Probe = field(default_factory=Probe)
    engine: Engine = field(default_factory=lambda: engines.of(engines.USUAL))

    @property
    def age_s(self) -> float | None:
        """How long this start of the container has been running."""
        return None if self.box.started_s is None else max(0.0, self.now_s - self.box.started_s)

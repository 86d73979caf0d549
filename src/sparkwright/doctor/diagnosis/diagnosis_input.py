"""The observation of a server that a diagnosis is made from. No I/O here.

An unknown value is None, empty, or a sentence in a field that ends in `_error`.
"""

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
    """The last exit of a container."""

    #: the exit code; None if it is not known
    code: int | None = None
    #: seconds since the epoch
    at_s: float | None = None
    out_of_memory: bool = False
    #: why Docker could not start it
    error: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """The answers of the server to a probe."""

    url: str = ""
    #: HTTP status of /health; 0 if nothing answered, None if it was not asked
    health: int | None = None
    #: as in health.record.Server, or "ended" if the server exited at the request
    token: Literal["", "made", "none", "refused", "error", "ended"] = ""
    #: how long the probe waited for a token
    waited_s: float = 0.0
    error: str = ""
    #: requests in progress, waiting ones included
    running: float | None = None
    #: tokens a second over all of them
    rate: float | None = None
    #: how long no token was generated while they ran
    still_s: float | None = None


@dataclass(frozen=True)
class DiagnosisInput:
    """The observation of a server at one moment."""

    #: seconds since the epoch
    now_s: float
    name: str = ""
    #: the run that holds the host's lock, in words
    busy: str = ""
    #: a run that was cut off before its end, in words
    cut_off: str = ""
    #: a server was verified on this host once
    known: bool = False
    #: why the Docker Engine does not answer
    engine_error: str = ""
    #: what to do about that
    engine_fix: str = ""
    box: Container = field(default_factory=Container)
    inspected: Mapping[str, Any] = field(default_factory=dict)
    end: End = field(default_factory=End)
    #: of the present start; None if it could not be read
    log: EngineState | None = None
    #: why the previous start exited, or this one if it did
    failure: Reading = UNKNOWN
    #: the last line of that start's log
    last_line: str = ""
    #: why its restarts are a loop
    loop: str = ""
    #: why an earlier check stopped it
    broken: str = ""
    #: the server whose turn it is in place of this one; empty for none
    asleep: str = ""
    #: when the host booted, seconds since the epoch
    booted_s: float | None = None
    #: the sentence about a host that went down with this server; empty for none
    lost: str = ""
    #: how long a start may take
    allowed_s: float = 0.0
    #: the last measured start
    ready_s: float | None = None
    port: int | None = None
    #: the process on the port that a container, which does not run, would publish
    listener: str = ""
    #: what differs from the verified state
    drift: tuple[str, ...] = ()
    drift_error: str = ""
    probe: Probe = field(default_factory=Probe)
    #: of the container, else of the verified one
    engine: Engine = field(default_factory=lambda: engines.of(engines.USUAL))

    @property
    def age_s(self) -> float | None:
        """The time since this start of the container, seconds; None if it is not known."""
        return None if self.box.started_s is None else max(0.0, self.now_s - self.box.started_s)


@dataclass(frozen=True)
class RecipeFacts:
    """The facts from the user's files, as far as they can be read; all are optional."""

    #: its name
    container: str = ""
    #: the server's URL, for one whose container does not publish its port
    base_url: str = ""
    model: str = ""
    #: on the hub
    model_id: str = ""
    #: the rate that the recipe expects of one stream
    tok_per_s: float | None = None
    platform: Literal["gb10", "ascend"] = "gb10"
    #: how long a token may take, seconds; 0 for the limit of the health checks
    token_s: float = 0.0
    key: str = ""

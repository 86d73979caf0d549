"""wake.json: the state of the service that wakes servers on request, and wake.lock, which it holds while it runs.

Both are the machine's. Status and doctor read them; only the service writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from sparkwright.host.state import StateFolder
from sparkwright.trust import private
from sparkwright.trust.shapes import built

NAME, LOCK = "wake", "wake.lock"
STARTS = "`invoke health.install` starts the service that reads at the gateways who was asked for."


@dataclass(slots=True)
class Failure:
    """The failed switches to a server, since it was last awake."""

    count: int
    #: of the last one, seconds since the epoch
    time_s: float
    why: str


@dataclass(slots=True)
class WakeRecord:
    """State carried from one look at the gateways to the next. Servers are named by their containers."""

    #: the server to wake again when `woken` is idle
    home: str = ""
    #: the server that a request woke; empty after a switch by hand
    woken: str = ""
    #: the server of a switch that has not ended, and its run
    begun: str = ""
    run: str = ""
    #: duration of the last switch, by server
    took_s: dict[str, float] = field(default_factory=dict)
    #: failed switches by server
    failures: dict[str, Failure] = field(default_factory=dict)
    #: a sentence for status, by server
    messages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, state: StateFolder) -> WakeRecord:
        """Read the record; an empty one if there is none."""
        data: dict[str, Any] = state.read(NAME) or {}
        failures = {name: Failure(**failure) for name, failure in (data.get("failures") or {}).items()}
        return built(cls, data, failures=failures)

    def save(self, state: StateFolder) -> None:
        """Write the record, if it changed."""
        data = dataclasses.asdict(self)
        if data != dataclasses.asdict(WakeRecord.of(state)):
            state.write(NAME, data)


def running(state: StateFolder) -> bool:
    """Return True if the service runs: it holds its lock while it does."""
    return private.held(state.path / LOCK)


def end(state: StateFolder) -> None:
    """Stop the service, if it runs; a switch that it has begun is ended first."""
    if running(state):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((state.path / LOCK).read_text()), signal.SIGTERM)


def message(state: StateFolder) -> str:
    """Return what the service says about the server of this folder; empty if it does not run, or says nothing."""
    return WakeRecord.of(state).messages.get(state.server, "") if running(state) else ""

"""The records of servers that take turns and of the service that wakes them: turns.json, wake.json and its lock."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.state import StateFolder
from sparkwright.trust import private
from sparkwright.trust.shapes import build_dataclass

RECORD_NAME = "turns"


def awake_server(state: StateFolder) -> str:
    """Return the container to keep awake; empty if no servers take turns."""
    return str((state.read(RECORD_NAME) or {}).get("awake", ""))


def list_servers(state: StateFolder) -> list[str]:
    """Return the containers that take turns; empty if there are none."""
    return list((state.read(RECORD_NAME) or {}).get("servers", ()))


def other_awake_server(state: StateFolder) -> str:
    """Return the server whose turn it is, if it is not this folder's; else empty."""
    current = awake_server(state)
    return current if state.server in list_servers(state) and current != state.server else ""


def refuse_asleep(state: StateFolder) -> None:
    """Raise Failed if it is another server's turn: this one must not start, for both together would not fit into memory."""
    if current := other_awake_server(state):
        raise Failed(f"{state.server} is asleep: it is the turn of {current}.", fix="`invoke switch` wakes it.")


def set_awake(state: StateFolder, name: str, servers: Sequence[str], run: str) -> None:
    """Record that it is this server's turn from now on.

    Args:
        name: of its container.
        servers: all that take turns.
        run: the run that decided it.
    """
    state.write(RECORD_NAME, {"awake": name, "servers": list(servers), "since": time.time(), "run": run})


def remove_server(state: StateFolder, server: str) -> None:
    """Record that a server no longer takes turns: it is always on."""
    remaining = [name for name in list_servers(state) if name != server]
    if len(remaining) == len(list_servers(state)):
        return
    if len(remaining) < 2 or awake_server(state) == server:
        state.remove(RECORD_NAME)
    else:
        state.write(RECORD_NAME, {**(state.read(RECORD_NAME) or {}), "servers": remaining})


# wake.json: the state of the service that wakes servers on request, and wake.lock, which it holds while it runs.
#
# Both are the machine's. Status and doctor read them; only the service writes.

WAKE_RECORD, LOCK = "wake", "wake.lock"
START_FIX = "`invoke health.install` starts the service that reads at the gateways who was asked for."


@dataclass(slots=True)
class SwitchFailure:
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
    failures: dict[str, SwitchFailure] = field(default_factory=dict)
    #: a sentence for status, by server
    messages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, state: StateFolder) -> WakeRecord:
        """Read the record; an empty one if there is none."""
        data: dict[str, Any] = state.read(WAKE_RECORD) or {}
        failures = {name: SwitchFailure(**failure) for name, failure in (data.get("failures") or {}).items()}
        return build_dataclass(cls, data, failures=failures)

    def save(self, state: StateFolder) -> None:
        """Write the record, if it changed."""
        data = dataclasses.asdict(self)
        if data != dataclasses.asdict(WakeRecord.load(state)):
            state.write(WAKE_RECORD, data)


def is_service_running(state: StateFolder) -> bool:
    """Return True if the service runs: it holds its lock while it does."""
    return private.is_locked(state.path / LOCK)


def stop_service(state: StateFolder) -> None:
    """Stop the service, if it runs; a switch that it has begun is ended first."""
    if is_service_running(state):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((state.path / LOCK).read_text()), signal.SIGTERM)


def service_message(state: StateFolder) -> str:
    """Return what the service says about the server of this folder; empty if it does not run, or says nothing."""
    return WakeRecord.load(state).messages.get(state.server, "") if is_service_running(state) else ""

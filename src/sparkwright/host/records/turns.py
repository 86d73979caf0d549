"""Servers that take turns on a host (turns.json), and the service that wakes them on request (wake.json, wake.lock).

Servers are identified by their containers' names.
"""

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

RECORD_NAME, WAKE_RECORD, LOCK_FILE = "turns", "wake", "wake.lock"
#: part of the error about a server that is asleep; the laptop recognizes it by this text
ASLEEP_CLAUSE = "is asleep: it is the turn of"
START_FIX = "`invoke health.install` starts the service that wakes servers on request."


def awake_server(state: StateFolder) -> str:
    """Return the server whose turn it is; empty if no servers take turns."""
    return str((state.read(RECORD_NAME) or {}).get("awake", ""))


def list_servers(state: StateFolder) -> list[str]:
    """Return the servers that take turns."""
    return list((state.read(RECORD_NAME) or {}).get("servers", ()))


def other_awake_server(state: StateFolder) -> str:
    """Return the server whose turn it is while the server of this state folder is asleep; otherwise empty."""
    current = awake_server(state)
    return current if state.server in list_servers(state) and current != state.server else ""


def require_awake(state: StateFolder) -> None:
    """Raise Failed if it is another server's turn, because the two would not fit in memory together."""
    if current := other_awake_server(state):
        raise Failed(f"{state.server} {ASLEEP_CLAUSE} {current}.", fix="`invoke switch` wakes it.")


def set_awake(state: StateFolder, name: str, servers: Sequence[str], run: str) -> None:
    """Record which servers take turns, and that it is now server `name`'s turn."""
    state.write(RECORD_NAME, {"awake": name, "servers": list(servers), "since": time.time(), "run": run})


def remove_server(state: StateFolder, server: str) -> None:
    """Record that a server no longer takes turns. Removes the record if fewer than two others do, or if it was its turn."""
    remaining_servers = [name for name in list_servers(state) if name != server]
    if len(remaining_servers) == len(list_servers(state)):
        return
    if len(remaining_servers) < 2 or awake_server(state) == server:
        state.remove(RECORD_NAME)
    else:
        state.write(RECORD_NAME, {**(state.read(RECORD_NAME) or {}), "servers": remaining_servers})


# wake.json contains the state of the service that wakes servers on request. The service locks wake.lock while it runs.
#
# Each host has one of each. Only the service writes them; status and doctor read them.


@dataclass(slots=True)
class SwitchFailure:
    """Failed switches to a server since it was last awake."""

    count: int
    #: time of the last failure, seconds since the epoch
    time_s: float
    #: reason for the last failure
    why: str


@dataclass(slots=True)
class WakeRecord:
    """State of the wake service between its queries of the gateways."""

    #: the server to switch back to when `woken` is idle
    home: str = ""
    #: the server that was last woken by a request; empty after a manual switch
    woken: str = ""
    #: target of the switch in progress, and the id of its run
    begun: str = ""
    run: str = ""
    #: seconds that the last switch to each server took
    took_s: dict[str, float] = field(default_factory=dict)
    #: failed switches by server
    failures: dict[str, SwitchFailure] = field(default_factory=dict)
    #: messages for `status`, by server
    messages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, state: StateFolder) -> WakeRecord:
        """Read the record; return the defaults if there is none."""
        data: dict[str, Any] = state.read(WAKE_RECORD) or {}
        failures = {name: SwitchFailure(**failure) for name, failure in (data.get("failures") or {}).items()}
        return build_dataclass(cls, data, failures=failures)

    def save(self, state: StateFolder) -> None:
        """Write the record if it has changed."""
        data = dataclasses.asdict(self)
        if data != dataclasses.asdict(WakeRecord.load(state)):
            state.write(WAKE_RECORD, data)


def is_service_running(state: StateFolder) -> bool:
    """Return True if the wake service is running."""
    return private.is_locked(state.path / LOCK_FILE)


def stop_service(state: StateFolder) -> None:
    """Ask the wake service to exit, without waiting. It finishes a switch in progress first."""
    if is_service_running(state):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((state.path / LOCK_FILE).read_text()), signal.SIGTERM)


def service_message(state: StateFolder) -> str:
    """Return the wake service's message about the server of this state folder; empty if it has none or is not running."""
    return WakeRecord.load(state).messages.get(state.server, "") if is_service_running(state) else ""

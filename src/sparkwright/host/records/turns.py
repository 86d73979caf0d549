"""The server to keep awake among those that take turns in the same memory: turns.json, of the machine.

It is written before anything is stopped, so that after a run was cut off the next command or check knows whose turn it is. A
server that was never verified is not recorded until it is: no check wakes it in place of a verified one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sparkwright.errors import Failed
from sparkwright.host.state import StateFolder

NAME = "turns"


def awake(state: StateFolder) -> str:
    """Return the container to keep awake; empty if no servers take turns."""
    return str((state.read(NAME) or {}).get("awake", ""))


def names(state: StateFolder) -> list[str]:
    """Return the containers that take turns; empty if there are none."""
    return list((state.read(NAME) or {}).get("servers", ()))


def in_place_of(state: StateFolder) -> str:
    """Return the server whose turn it is, if it is not this folder's; else empty."""
    now = awake(state)
    return now if state.server in names(state) and now != state.server else ""


def refuse_start(state: StateFolder) -> None:
    """Raise Failed if it is another server's turn: both together would not fit into memory."""
    if now := in_place_of(state):
        raise Failed(f"{state.server} is asleep: it is the turn of {now}.", fix="`invoke switch` wakes it.")


def give(state: StateFolder, name: str, servers: Sequence[str], run: str) -> None:
    """Record that it is this server's turn from now on.

    Args:
        name: of its container.
        servers: all that take turns.
        run: the run that decided it.
    """
    state.write(NAME, {"awake": name, "servers": list(servers), "since": time.time(), "run": run})


def forget(state: StateFolder, server: str) -> None:
    """Record that a server no longer takes turns: it is always on."""
    left = [name for name in names(state) if name != server]
    if len(left) == len(names(state)):
        return
    if len(left) < 2 or awake(state) == server:
        state.remove(NAME)
    else:
        state.write(NAME, {**(state.read(NAME) or {}), "servers": left})

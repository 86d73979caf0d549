"""The host's interface to the guard of the service: its configuration, its state, and its actions.

The process itself is `sparkwright.guard.service`; `health.install` sets it up. Its files are in the folder of the guards.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.guard import samples as rings
from sparkwright.guard.service import CONF, EVENTS, LOCK, RING
from sparkwright.host.containers import containers
from sparkwright.host.memory import start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, history, incidents
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.protocol.memory_level import Level
from sparkwright.trust import private
from sparkwright.trust.names import STEP
from sparkwright.units import GIB, gib

#: the name of a guard's action in the history
WHAT = "stopped to save the host"
NAME = "guarded"
FILES = (CONF, RING, EVENTS, LOCK)


@dataclass(frozen=True, slots=True)
class Act:
    """A server that the guard stopped."""

    time_s: float
    #: "stopped" or "killed"
    how: str
    name: str
    container_id: str
    kind: str
    available_bytes: int
    #: bytes per second
    rate: float

    @property
    def sentence(self) -> str:
        """A sentence: the time and the reason."""
        falling = f", falling {_rate(self.rate)}" if self.rate > GIB / 100 else ""
        stalled = ", and every process was waiting for memory" if self.kind == "stalled" else ""
        at = units.moment(self.time_s, units.MINUTE)
        left = f"{gib(self.available_bytes)} GiB available{falling}{stalled}"
        return f"{self.name} was {self.how} at {at} to save the host: {left}"


def _rate(rate: float) -> str:
    return f"{rate / GIB:.1f} GiB/s" if rate > GIB / 10 else f"{rate / 2**20:.0f} MiB/s"


def folder(state: StateFolder) -> Path:
    """Return the folder of the guard's files."""
    return start_guard.folder(state)


def running(state: StateFolder) -> bool:
    """Return True if the guard of the service runs: it holds its lock while it does."""
    return private.held(folder(state) / LOCK)


def end(state: StateFolder) -> None:
    """Stop the guard of the service, if it runs."""
    if running(state):
        with contextlib.suppress(OSError, KeyError, ValueError):
            about, _ = rings.read(str(folder(state) / RING))
            os.kill(int(about["pid"]), signal.SIGTERM)


def write(context: Context, tell: Sequence[str] | None = None) -> None:
    """Write the guard's configuration: every verified server that runs.

    Args:
        tell: the command to start after an action; None: keep the present one.
    """
    path = folder(context.state) / CONF
    known = _words(path)
    verified = [(state, found) for state in context.state.servers() if (found := good_states.last(state))]
    rows = [row for _, found in verified if (row := _row(context, found))]
    newest, good = max(verified, key=lambda row: float(row[1].get("since") or 0), default=(context.state, {}))
    about = {
        "left": str(int(good.get("left_bytes") or 0)),
        "floor": str(int(float(good.get("guard_gib") or 0) * GIB)),
        "address": start_guard.address_of(context.machine),
        "root": context.machine.root,
        "key": start_guard.key_of(good["spec"]) if good else "",
        "of": newest.server,
    }
    rows += [f"{name} {value}" for name, value in about.items() if value]
    words = [row.removeprefix("tell ") for row in known if row.startswith("tell ")] if tell is None else list(tell)
    rows += [f"tell {word}" for word in words if "\n" not in word]
    if rows != known:
        context.state.folder(start_guard.FOLDER)
        write_atomically(path, ("\n".join(rows) + "\n").encode())


def _row(context: Context, good: dict[str, Any]) -> str:
    """Return the row of a verified server; "" if it does not run."""
    found = containers.inspect(context.docker(), str(good.get("container_id", "")))
    if found is None or not found["State"]["Running"]:
        return ""
    name, pid = str(good["spec"]["name"]), found["State"].get("Pid")
    return f"server {name} {found['Id']} {pid if isinstance(pid, int) else 0} {int(good.get('held_bytes') or 0)}"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def level(state: StateFolder) -> Level:
    """Return the memory levels that the guard has recorded since the server was verified."""
    try:
        about, _ = rings.read(str(folder(state) / RING))
    except OSError:
        return Level()
    total, left, lowest = (_number(about.get(name, "")) for name in ("total", "left", "lowest"))
    return Level(running(state), total or 0, left or None, lowest)


def _number(text: str) -> int | None:
    first = text.split(" ")[0]
    return int(first) if first.isdigit() and len(first) < 19 else None


def acts(state: StateFolder) -> list[Act]:
    """Return the actions of the guard, oldest first. Incomplete lines are left out."""
    found = []
    for line in _words(folder(state) / EVENTS):
        with contextlib.suppress(ValueError):
            time_s, how, name, container_id, kind, available, _, rate = line.split(" ")
            if STEP.fullmatch(name) and STEP.fullmatch(container_id) and how in ("stopped", "killed"):
                found.append(Act(float(time_s), how, name, container_id, kind, int(available), float(rate)))
    return found


def of_container(state: StateFolder, container_id: str, since_s: float) -> str:
    """Return the reason why the guard stopped a container after this moment; empty if it did not."""
    mine = [act for act in acts(state) if act.container_id == container_id and act.time_s >= since_s]
    return mine[-1].sentence if mine else ""


def settle(context: Context) -> None:
    """Record the guard's actions since the last check: in the history, and as an incident."""
    seen_s = float((context.state.read(NAME) or {}).get("seen_s") or 0)
    good_id = good_states.last(context.state).get("container_id")
    new = [act for act in acts(context.state) if act.time_s > seen_s and act.container_id == good_id]
    for act in new:
        history.append(context, WHAT, container_id=act.container_id, why=act.sentence, who="the guard")
    if new:
        context.state.write(NAME, {"seen_s": new[-1].time_s})
        with contextlib.suppress(OSError):
            incidents.save(context, new[-1].name, new[-1].sentence)

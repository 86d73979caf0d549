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
from sparkwright.host.records import history, incidents, verified_states
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.protocol.memory_level import MemoryLevel
from sparkwright.trust import private
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.units import GIB, format_gib

#: the name of a guard's action in the history
HISTORY_ACTION = "stopped to save the host"
RECORD_NAME = "guarded"
FILES = (CONF, RING, EVENTS, LOCK)


@dataclass(frozen=True, slots=True)
class GuardAction:
    """A server that the guard stopped."""

    time_s: float
    #: "stopped" or "killed"
    method: str
    name: str
    container_id: str
    kind: str
    available_bytes: int
    #: bytes per second
    rate: float

    @property
    def sentence(self) -> str:
        """A sentence: the time and the reason."""
        falling = f", falling {_format_rate(self.rate)}" if self.rate > GIB / 100 else ""
        stalled = ", and every process was waiting for memory" if self.kind == "stalled" else ""
        at = units.format_time(self.time_s, units.MINUTE_FORMAT)
        left = f"{format_gib(self.available_bytes)} GiB available{falling}{stalled}"
        return f"{self.name} was {self.method} at {at} to save the host: {left}"


def _format_rate(rate: float) -> str:
    return f"{rate / GIB:.1f} GiB/s" if rate > GIB / 10 else f"{rate / 2**20:.0f} MiB/s"


def folder(state: StateFolder) -> Path:
    """Return the folder of the guard's files."""
    return start_guard.folder(state)


def is_running(state: StateFolder) -> bool:
    """Return True if the guard of the service runs: it holds its lock while it does."""
    return private.is_locked(folder(state) / LOCK)


def stop(state: StateFolder) -> None:
    """Stop the guard of the service, if it runs."""
    if is_running(state):
        with contextlib.suppress(OSError, KeyError, ValueError):
            header, _ = rings.read(str(folder(state) / RING))
            os.kill(int(header["pid"]), signal.SIGTERM)


def write_configuration(context: Context, notify: Sequence[str] | None = None) -> None:
    """Write the guard's configuration: every verified server that runs.

    Args:
        notify: the command to start after an action; None: keep the present one.
    """
    path = folder(context.state) / CONF
    current_rows = _read_lines(path)
    verified = [(state, found) for state in context.state.servers() if (found := verified_states.load_last(state))]
    rows = [row for _, found in verified if (row := _server_row(context, found))]
    newest, newest_state = max(verified, key=lambda row: float(row[1].get("since") or 0), default=(context.state, {}))
    settings = {
        "left": str(int(newest_state.get("left_bytes") or 0)),
        "floor": str(int(float(newest_state.get("guard_gib") or 0) * GIB)),
        "address": start_guard.engine_address(context.machine),
        "root": context.machine.root,
        "key": start_guard.configuration_key(newest_state["spec"]) if newest_state else "",
        "of": newest.server,
    }
    rows += [f"{name} {value}" for name, value in settings.items() if value]
    notify_words = (
        [row.removeprefix("tell ") for row in current_rows if row.startswith("tell ")]
        if notify is None
        else list(notify)
    )
    rows += [f"tell {word}" for word in notify_words if "\n" not in word]
    if rows != current_rows:
        context.state.folder(start_guard.FOLDER)
        write_atomically(path, ("\n".join(rows) + "\n").encode())


def _server_row(context: Context, verified: dict[str, Any]) -> str:
    """Return the row of a verified server; "" if it does not run."""
    container = containers.inspect(context.docker(), str(verified.get("container_id", "")))
    if container is None or not container["State"]["Running"]:
        return ""
    name, pid = str(verified["spec"]["name"]), container["State"].get("Pid")
    return (
        f"server {name} {container['Id']} {pid if isinstance(pid, int) else 0} {int(verified.get('held_bytes') or 0)}"
    )


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def read_level(state: StateFolder) -> MemoryLevel:
    """Return the memory levels that the guard has recorded since the server was verified."""
    try:
        header, _ = rings.read(str(folder(state) / RING))
    except OSError:
        return MemoryLevel()
    total, left, lowest = (_parse_number(header.get(name, "")) for name in ("total", "left", "lowest"))
    return MemoryLevel(is_running(state), total or 0, left or None, lowest)


def _parse_number(text: str) -> int | None:
    first = text.split(" ")[0]
    return int(first) if first.isdigit() and len(first) < 19 else None


def list_actions(state: StateFolder) -> list[GuardAction]:
    """Return the actions of the guard, oldest first. Incomplete lines are left out."""
    actions = []
    for line in _read_lines(folder(state) / EVENTS):
        with contextlib.suppress(ValueError):
            time_s, how, name, container_id, kind, available, _, rate = line.split(" ")
            if (
                PATH_COMPONENT.fullmatch(name)
                and PATH_COMPONENT.fullmatch(container_id)
                and how in ("stopped", "killed")
            ):
                actions.append(GuardAction(float(time_s), how, name, container_id, kind, int(available), float(rate)))
    return actions


def stop_reason(state: StateFolder, container_id: str, since_s: float) -> str:
    """Return the reason why the guard stopped a container after this moment; empty if it did not."""
    own_actions = [act for act in list_actions(state) if act.container_id == container_id and act.time_s >= since_s]
    return own_actions[-1].sentence if own_actions else ""


def record_actions(context: Context) -> None:
    """Record the guard's actions since the last check: in the history, and as an incident."""
    seen_s = float((context.state.read(RECORD_NAME) or {}).get("seen_s") or 0)
    good_id = verified_states.load_last(context.state).get("container_id")
    new_actions = [act for act in list_actions(context.state) if act.time_s > seen_s and act.container_id == good_id]
    for act in new_actions:
        history.append(context, HISTORY_ACTION, container_id=act.container_id, why=act.sentence, who="the guard")
    if new_actions:
        context.state.write(RECORD_NAME, {"seen_s": new_actions[-1].time_s})
        with contextlib.suppress(OSError):
            incidents.save(context, new_actions[-1].name, new_actions[-1].sentence)

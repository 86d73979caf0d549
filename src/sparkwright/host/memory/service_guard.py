"""Configure the service's memory guard, and read its state and actions.

The guard is a process, `sparkwright.guard.service`, which `health.install` sets up. Its files are in the guards' folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright import units
from sparkwright.guard import samples as memory_samples
from sparkwright.guard.service import CONF_FILE, EVENTS_FILE, LOCK_FILE, RING_FILE
from sparkwright.host.containers import containers
from sparkwright.host.memory import start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import history, incidents, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.protocol.memory_level import MemoryLevel
from sparkwright.trust import private
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.units import GIB, format_gib

#: action of the guard in the history
HISTORY_ACTION = "stopped to save the host"
RECORD_NAME = "guarded"
FILE_NAMES = (CONF_FILE, RING_FILE, EVENTS_FILE, LOCK_FILE)


@dataclass(frozen=True, slots=True)
class GuardAction:
    """A server that the guard stopped."""

    time_s: float
    #: "stopped" or "killed"
    method: str
    #: name of the container
    name: str
    container_id: str
    #: the kind of danger, see `guard.judge.Danger`
    kind: str
    available_bytes: int
    #: decrease of the available memory, bytes per second
    rate: float

    @property
    def message(self) -> str:
        """A message with the time and the reason, without a full stop."""
        falling_text = f", falling {_format_rate(self.rate)}" if self.rate > GIB / 100 else ""
        stalled_text = ", and every process was waiting for memory" if self.kind == "stalled" else ""
        time_text = units.format_time(self.time_s, units.MINUTE_FORMAT)
        available_text = f"{format_gib(self.available_bytes)} GiB available"
        reason = f"{available_text}{falling_text}{stalled_text}"
        return f"{self.name} was {self.method} at {time_text} to save the host: {reason}"


def _format_rate(rate: float) -> str:
    return f"{rate / GIB:.1f} GiB/s" if rate > GIB / 10 else f"{rate / 2**20:.0f} MiB/s"


def folder(state: StateFolder) -> Path:
    return start_guard.folder(state)


def is_running(state: StateFolder) -> bool:
    """Return True if the service's guard is running, which holds a lock while it does."""
    return private.is_locked(folder(state) / LOCK_FILE)


def stop(state: StateFolder) -> None:
    """Stop the service's guard, if it is running."""
    if is_running(state):
        with contextlib.suppress(OSError, KeyError, ValueError):
            header, _ = memory_samples.read(str(folder(state) / RING_FILE))
            os.kill(int(header["pid"]), signal.SIGTERM)


def write_configuration(context: Context, notify_command: Sequence[str] | None = None) -> None:
    """Write the guard's configuration, with all running verified servers.

    Args:
        notify_command: the command that the guard runs after an action; None to keep the current one.
    """
    path = folder(context.state) / CONF_FILE
    current_lines = _read_lines(path)
    states = {state.server: verified_states.load_last(state) for state in context.state.servers()}
    states = {server: verified for server, verified in states.items() if verified}
    lines = [line for verified in states.values() if (line := _build_server_line(context, verified))]
    newest_server = max(states, key=lambda server: states[server].since, default="")
    newest_state = states.get(newest_server, VerifiedState())
    settings = {
        "left": str(int(newest_state.left_bytes or 0)),
        "floor": str(int(newest_state.guard_gib * GIB)),
        "address": start_guard.engine_address(context.machine),
        "root": context.machine.root,
        "key": start_guard.configuration_key(newest_state.spec) if newest_state else "",
        "of": newest_server if newest_state else context.state.server,
    }
    lines += [f"{name} {value}" for name, value in settings.items() if value]
    if notify_command is None:
        lines += [line for line in current_lines if line.startswith("tell ")]
    else:
        lines += [f"tell {word}" for word in notify_command if "\n" not in word]
    if lines != current_lines:
        context.state.folder(start_guard.FOLDER)
        write_atomically(path, ("\n".join(lines) + "\n").encode())


def _build_server_line(context: Context, verified: VerifiedState) -> str:
    """Return the configuration line of a verified server, or "" if it is not running."""
    container = containers.inspect(context.docker(), verified.container_id) if verified.container_id else None
    if container is None or not container["State"]["Running"]:
        return ""
    name, pid = verified.spec["name"], container["State"].get("Pid")
    held_bytes = int(verified.held_bytes or 0)
    return f"server {name} {container['Id']} {pid if isinstance(pid, int) else 0} {held_bytes}"


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def read_level(state: StateFolder) -> MemoryLevel:
    """Return the memory level when the server was verified, and the lowest one that the guard has recorded since."""
    try:
        header, _ = memory_samples.read(str(folder(state) / RING_FILE))
    except OSError:
        return MemoryLevel()
    total, left, lowest = (_parse_number(header.get(name, "")) for name in ("total", "left", "lowest"))
    return MemoryLevel(is_running(state), total or 0, left or None, lowest)


def _parse_number(text: str) -> int | None:
    first_word = text.split(" ")[0]
    return int(first_word) if first_word.isdigit() and len(first_word) < 19 else None


def list_actions(state: StateFolder) -> list[GuardAction]:
    """Return the actions of the guard, oldest first. Invalid lines are skipped."""
    actions = []
    for line in _read_lines(folder(state) / EVENTS_FILE):
        with contextlib.suppress(ValueError):
            time_s, method, name, container_id, kind, available, _, rate = line.split(" ")
            has_valid_names = PATH_COMPONENT.fullmatch(name) and PATH_COMPONENT.fullmatch(container_id)
            if has_valid_names and method in ("stopped", "killed"):
                action = GuardAction(float(time_s), method, name, container_id, kind, int(available), float(rate))
                actions.append(action)
    return actions


def stop_reason(state: StateFolder, container_id: str, since_s: float) -> str:
    """Return why the guard stopped a container at or after `since_s`, or "" if it did not."""
    actions = reversed(list_actions(state))
    matching = (action for action in actions if action.container_id == container_id and action.time_s >= since_s)
    return next((action.message for action in matching), "")


def record_actions(context: Context) -> None:
    """Record the guard's new actions on the verified server in the history, and the last one as an incident."""
    recorded_s = float((context.state.read(RECORD_NAME) or {}).get("seen_s") or 0)
    verified_id = verified_states.load_last(context.state).container_id
    actions = [action for action in list_actions(context.state) if action.container_id == verified_id]
    new_actions = [action for action in actions if action.time_s > recorded_s]
    for action in new_actions:
        history.append(context, HISTORY_ACTION, container_id=verified_id, why=action.message, who="the guard")
    if new_actions:
        context.state.write(RECORD_NAME, {"seen_s": new_actions[-1].time_s})
        with contextlib.suppress(OSError):
            incidents.save(context, new_actions[-1].name, new_actions[-1].message)

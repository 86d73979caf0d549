"""Detection that the host went down while a guard sampled its memory, from the guard's last samples on the disk.

A guard writes its samples to a ring buffer (a file), with the id of the boot. If the ring of an earlier boot has no end, the host
went down meanwhile. If the last samples show that memory was short, starts of this configuration are forbidden without
confirmation. Otherwise, for example after a power cut, the loss is only reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.guard import samples as memory_samples
from sparkwright.guard.judge import FLOOR_SHARE, LOW_SHARE
from sparkwright.host.containers import containers, lifecycle
from sparkwright.host.machine import Machine
from sparkwright.host.memory import start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import history, incidents
from sparkwright.host.state import StateFolder
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.units import GIB, format_gib

RECORD_NAME = "lost"
#: record of the configurations with which the host went down and which were not verified since, and its maximum length
FORBIDDEN, MAX_FORBIDDEN = "lost_configurations", 16
#: suffix of a ring whose loss was recorded
REPORTED_SUFFIX = ".lost"
#: memory was short if it would have been exhausted within this time at the last rate
MAX_EXHAUSTION_S = 10.0
#: time over which the last rate is computed
RATE_WINDOW_S = 2.0
HISTORY_ACTION = "host went down"
FIX = (
    "Give the recipe less memory or a shorter context, or start it unchanged with `--anyway` of deploy, restart, switch or "
    "rollback."
)


@dataclass(frozen=True, slots=True)
class HostLoss:
    """The host went down: when, with which server, and the memory at the guard's last sample."""

    #: file with the guard's samples
    ring: Path
    #: name of the container
    name: str
    container_id: str
    #: the configuration, see `start_guard.configuration_key`
    key: str
    #: name of the server's records folder; empty if the host has one server
    server: str
    run: str
    #: "starting" or "serving"
    activity: str
    #: stage of the start
    stage: str
    #: time of the last sample on the disk, seconds since the epoch
    at_s: float
    available_bytes: int
    #: decrease of the available memory, bytes per second
    rate: float
    #: the host ran out of memory, or nearly did
    memory_was_short: bool

    @property
    def sentence(self) -> str:
        """A message with the time, the server's stage and the memory of the last sample, without a full stop."""
        falling = f", falling {self.rate / GIB:.1f} GiB/s" if self.rate > GIB / 20 else ""
        stage = f", stage {self.stage!r}" if self.stage else ""
        cause = "" if self.memory_was_short else "; memory was not short"
        sample = f"{format_gib(self.available_bytes)} GiB available{falling}"
        clock = units.format_time(self.at_s, units.MINUTE_FORMAT)
        return (
            f"the host went down at {clock} while {self.name} was {self.activity}{stage} (last sample: {sample}{cause})"
        )


def list_unrecorded(state: StateFolder, machine: Machine) -> list[HostLoss]:
    """Return the losses that are not recorded yet, oldest first."""
    return sorted(_iter_unrecorded(state, start_guard.boot_id(machine)), key=lambda loss: loss.at_s)


def _iter_unrecorded(state: StateFolder, boot: str) -> Iterator[HostLoss]:
    for path in start_guard.folder(state).glob(f"*{start_guard.SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):
            header, samples = memory_samples.read(str(path))
            if header.get("state") == "guarding" and boot and header.get("boot") not in (None, "", boot) and samples:
                yield _build_loss(path, header, samples)


def _build_loss(path: Path, header: dict[str, str], samples: list[tuple[float, int, int, float]]) -> HostLoss:
    at_s, available, _, _ = samples[-1]
    earlier_s, earlier_available = next(
        (sample[:2] for sample in samples if at_s - sample[0] <= RATE_WINDOW_S), (at_s, available)
    )
    rate = max(0.0, (earlier_available - available) / (at_s - earlier_s)) if at_s > earlier_s else 0.0
    total = int(header.get("total", "0"))
    server = header.get("server", "")
    return HostLoss(
        ring=path,
        name=header.get("name", "") or "a server",
        container_id=header.get("id", ""),
        key=header.get("key", ""),
        server=server if PATH_COMPONENT.fullmatch(server) else "",
        run=header.get("run", ""),
        activity="serving" if header.get("what") == "serving" else "starting",
        stage=header.get("stage", ""),
        at_s=at_s,
        available_bytes=available,
        rate=rate,
        memory_was_short=available < total * LOW_SHARE or available - rate * MAX_EXHAUSTION_S < total * FLOOR_SHARE,
    )


def record_losses(context: Context) -> list[HostLoss]:
    """Record unrecorded losses: history, incident, and the block on the next start. Returns the losses, oldest first."""
    losses = list_unrecorded(context.state, context.machine)
    for loss in losses:
        context.note(f"{loss.sentence}.")
        _record_loss(context, loss)
    return losses


def _record_loss(context: Context, loss: HostLoss) -> None:
    run = loss.run if PATH_COMPONENT.fullmatch(loss.run) else context.run_id
    server_context = dataclasses.replace(context, state=StateFolder(context.state.path, loss.server), run_id=run)
    if loss.memory_was_short:
        row = {
            "key": loss.key,
            "name": loss.name,
            "container_id": loss.container_id,
            "since": loss.at_s,
            "why": loss.sentence,
            "available_bytes": loss.available_bytes,
        }
        server_context.state.write(RECORD_NAME, row)
        _forbid(server_context.state, row)
        _remove_restart_policy(server_context, loss)
    history.append(server_context, HISTORY_ACTION, container_id=loss.container_id, why=loss.sentence)
    try:
        incidents.save(server_context, loss.name, loss.sentence)
    except OSError as error:
        context.note(f"cannot save the incident: {error.strerror}")
    with contextlib.suppress(OSError):
        loss.ring.rename(loss.ring.with_suffix(REPORTED_SUFFIX))


def _remove_restart_policy(context: Context, loss: HostLoss) -> None:
    """Remove the container's restart policy. If Docker does not answer yet, the next check reports the container."""
    with contextlib.suppress(Exception):
        container = containers.inspect(context.docker(), loss.container_id)
        if container is not None and container["HostConfig"]["RestartPolicy"]["Name"] not in ("", "no"):
            lifecycle.set_policy(context, container, "no")
            context.note(f"the restart policy of {loss.name} is now no")


def status_message(state: StateFolder, machine: Machine) -> str:
    """Return the message about the last loss for `status`, or "" if a server was verified since."""
    losses = list_unrecorded(state, machine)
    return losses[-1].sentence if losses else str(read_last_loss(state).get("why", ""))


def read_last_loss(state: StateFolder) -> dict[str, Any]:
    """Return the record of the last loss, if no server was verified since, or an empty dict: key, name, since, why, ..."""
    return state.read(RECORD_NAME) or {}


def _forbid(state: StateFolder, row: dict[str, Any]) -> None:
    rows = [forbidden for forbidden in _list_forbidden(state) if forbidden.get("key") != row["key"]]
    state.write(FORBIDDEN, {"rows": [*rows, row][-MAX_FORBIDDEN:]})


def _list_forbidden(state: StateFolder) -> list[dict[str, Any]]:
    """Return the configurations that must not start without confirmation, oldest first."""
    rows = (state.read(FORBIDDEN) or {}).get("rows")
    forbidden = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    last = read_last_loss(state)
    return [*forbidden, last] if last else forbidden


def forbidden_reason(state: StateFolder, spec: Mapping[str, Any], container_id: str = "") -> str:
    """Return why a container must not be started without confirmation, or "" if it may.

    Args:
        state: the server's state folder.
        spec: the container's spec; empty if unknown.
        container_id: Id of an existing container, by which it is recognized even without a spec.
    """
    key = start_guard.configuration_key(spec) if spec else ""
    return _find_reason(
        state, lambda row: row.get("key") == key or (container_id and row.get("container_id") == container_id)
    )


def forbidden_start_reason(state: StateFolder, start: Mapping[str, Any]) -> str:
    """Return why a start (`arguments`, `image`) must not be repeated without confirmation, or "" if it may."""
    arguments_and_image = (start.get("arguments"), start.get("image"))
    if not all(arguments_and_image):
        return ""
    return _find_reason(state, lambda row: _split_key(str(row.get("key", ""))) == arguments_and_image)


def _find_reason(state: StateFolder, matches: Callable[[dict[str, Any]], object]) -> str:
    rows = reversed(_list_forbidden(state))
    return next((str(row.get("why", "")) for row in rows if row.get("key") and matches(row)), "")


def _split_key(key: str) -> tuple[str, str]:
    """Return the arguments and the image (its digest, if it has one) of a key."""
    arguments, _, image = key.partition("@")
    return arguments, image.partition("@")[2] or image


def refuse_forbidden(context: Context, why: str, error: type[SparkwrightError] = Refused) -> None:
    """Raise an error if a start is forbidden and `--anyway` was not passed.

    Args:
        why: the result of `forbidden_reason` or `forbidden_start_reason`.
        error: Refused before anything was changed, Failed at the start itself.
    """
    if why and not context.guards.anyway:
        raise error(f"{why}, with the same image and arguments.", fix=FIX)


def clear_forbidden(state: StateFolder, spec: Mapping[str, Any]) -> None:
    """Allow this configuration again, after a server with it was verified."""
    key = start_guard.configuration_key(spec) if spec else ""
    rows = [row for row in _list_forbidden(state) if row.get("key") != key]
    if rows:
        state.write(FORBIDDEN, {"rows": rows})
    else:
        state.remove(FORBIDDEN)
    state.remove(RECORD_NAME)

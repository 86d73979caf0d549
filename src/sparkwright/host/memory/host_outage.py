"""Detect from a memory guard's last samples on disk that the host went down while the guard was running.

A guard writes its samples to a ring buffer in a file, with the id of the boot. If a file from an earlier boot was never closed,
the host went down while the guard was running. If memory was low in the last samples, the configuration can be started again only
with confirmation. Otherwise, for example after a power cut, the outage is only reported.
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

#: record of the last outage
LAST_OUTAGE_RECORD = "lost"
#: record of the configurations that brought the host down and have not been verified since
FORBIDDEN_RECORD = "lost_configurations"
#: maximum number of configurations in that record
MAX_FORBIDDEN = 16
#: suffix of a sample file whose outage has been recorded
REPORTED_SUFFIX = ".lost"
#: memory was low if it would have been exhausted within this time at the last rate
EXHAUSTION_HORIZON_S = 10.0
#: time over which the last rate is computed
RATE_WINDOW_S = 2.0
HISTORY_ACTION = "host went down"
FIX = (
    "Give the recipe less memory or a shorter context, or pass `--anyway` to deploy, restart, switch or rollback to start it "
    "unchanged."
)


@dataclass(frozen=True, slots=True)
class HostOutage:
    """An outage of the host: its time, the server that was running, and the memory at the guard's last sample."""

    #: file with the guard's samples
    samples_path: Path
    #: name of the container
    name: str
    container_id: str
    #: the configuration, see `start_guard.configuration_key`
    key: str
    #: name of the server's records folder; empty if the host has one server
    server: str
    run_id: str
    #: "starting" or "serving"
    activity: str
    #: stage of the start
    stage: str
    #: time of the last sample on disk, seconds since the epoch
    last_sample_s: float
    available_bytes: int
    #: decrease of the available memory, bytes per second
    rate: float
    #: the host ran out of memory, or nearly did
    memory_was_low: bool

    @property
    def message(self) -> str:
        """A message with the time, the server's stage and the memory at the last sample, without a full stop."""
        falling_text = f", falling {self.rate / GIB:.1f} GiB/s" if self.rate > GIB / 20 else ""
        stage_text = f", stage {self.stage!r}" if self.stage else ""
        cause_text = "" if self.memory_was_low else "; memory was not low"
        sample_text = f"{format_gib(self.available_bytes)} GiB available{falling_text}"
        time_text = units.format_time(self.last_sample_s, units.MINUTE_FORMAT)
        activity = f"{self.name} was {self.activity}{stage_text}"
        return f"the host went down at {time_text} while {activity} (last sample: {sample_text}{cause_text})"


def list_unrecorded(state: StateFolder, machine: Machine) -> list[HostOutage]:
    """Return the outages that have not been recorded yet, oldest first."""
    return sorted(_iter_unrecorded(state, start_guard.boot_id(machine)), key=lambda outage: outage.last_sample_s)


def _iter_unrecorded(state: StateFolder, boot_id: str) -> Iterator[HostOutage]:
    for path in start_guard.folder(state).glob(f"*{start_guard.RING_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):
            header, samples = memory_samples.read(str(path))
            if (
                header.get("state") == "guarding"
                and boot_id
                and header.get("boot") not in (None, "", boot_id)
                and samples
            ):
                yield _build_outage(path, header, samples)


def _build_outage(path: Path, header: dict[str, str], samples: list[tuple[float, int, int, float]]) -> HostOutage:
    last_s, available, _, _ = samples[-1]
    earlier_s, earlier_available = next(
        (sample[:2] for sample in samples if last_s - sample[0] <= RATE_WINDOW_S), (last_s, available)
    )
    rate = max(0.0, (earlier_available - available) / (last_s - earlier_s)) if last_s > earlier_s else 0.0
    total = int(header.get("total", "0"))
    server = header.get("server", "")
    return HostOutage(
        samples_path=path,
        name=header.get("name", "") or "a server",
        container_id=header.get("id", ""),
        key=header.get("key", ""),
        server=server if PATH_COMPONENT.fullmatch(server) else "",
        run_id=header.get("run", ""),
        activity="serving" if header.get("what") == "serving" else "starting",
        stage=header.get("stage", ""),
        last_sample_s=last_s,
        available_bytes=available,
        rate=rate,
        memory_was_low=available < total * LOW_SHARE or available - rate * EXHAUSTION_HORIZON_S < total * FLOOR_SHARE,
    )


def record_outages(context: Context) -> None:
    """Record new outages in the history, as incidents and as a block on the next start, oldest first."""
    for outage in list_unrecorded(context.state, context.machine):
        context.note(f"{outage.message}.")
        _record_outage(context, outage)


def _record_outage(context: Context, outage: HostOutage) -> None:
    run_id = outage.run_id if PATH_COMPONENT.fullmatch(outage.run_id) else context.run_id
    server_context = dataclasses.replace(context, state=StateFolder(context.state.path, outage.server), run_id=run_id)
    if outage.memory_was_low:
        row = {
            "key": outage.key,
            "name": outage.name,
            "container_id": outage.container_id,
            "since": outage.last_sample_s,
            "why": outage.message,
            "available_bytes": outage.available_bytes,
        }
        server_context.state.write(LAST_OUTAGE_RECORD, row)
        _forbid(server_context.state, row)
        _remove_restart_policy(server_context, outage)
    history.append(server_context, HISTORY_ACTION, container_id=outage.container_id, why=outage.message)
    try:
        incidents.save(server_context, outage.name, outage.message)
    except OSError as error:
        context.note(f"cannot save the incident: {error.strerror}")
    with contextlib.suppress(OSError):
        outage.samples_path.rename(outage.samples_path.with_suffix(REPORTED_SUFFIX))


def _remove_restart_policy(context: Context, outage: HostOutage) -> None:
    """Remove the container's restart policy. If Docker does not answer yet, the next check reports the container."""
    with contextlib.suppress(Exception):
        container = containers.inspect(context.docker(), outage.container_id)
        if container is not None and container["HostConfig"]["RestartPolicy"]["Name"] not in ("", "no"):
            lifecycle.set_policy(context, container, "no")
            context.note(f"set the restart policy of {outage.name} to 'no'")


def status_message(state: StateFolder, machine: Machine) -> str:
    """Return the message about the last outage for `status`, or "" if a server has been verified since."""
    outages = list_unrecorded(state, machine)
    return outages[-1].message if outages else str(read_last_outage(state).get("why", ""))


def read_last_outage(state: StateFolder) -> dict[str, Any]:
    """Return the last recorded outage (key, name, since, why, ...), or {} if a server has been verified since."""
    return state.read(LAST_OUTAGE_RECORD) or {}


def _forbid(state: StateFolder, row: dict[str, Any]) -> None:
    rows = [forbidden for forbidden in _list_forbidden(state) if forbidden.get("key") != row["key"]]
    state.write(FORBIDDEN_RECORD, {"rows": [*rows, row][-MAX_FORBIDDEN:]})


def _list_forbidden(state: StateFolder) -> list[dict[str, Any]]:
    """Return the configurations that must not start without confirmation, oldest first."""
    rows = (state.read(FORBIDDEN_RECORD) or {}).get("rows")
    forbidden = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    last_outage = read_last_outage(state)
    return [*forbidden, last_outage] if last_outage else forbidden


def forbidden_reason(state: StateFolder, spec: Mapping[str, Any], container_id: str = "") -> str:
    """Return why a container must not be started without confirmation, or "" if it may.

    Args:
        state: the server's state folder.
        spec: the container's spec; empty if unknown.
        container_id: Id of an existing container, which identifies it even without a spec.
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


def refuse_forbidden(context: Context, reason: str, error: type[SparkwrightError] = Refused) -> None:
    """Raise an error if a start is forbidden and `--anyway` was not passed.

    Args:
        reason: the result of `forbidden_reason` or `forbidden_start_reason`.
        error: exception to raise: Refused if nothing has been changed yet, Failed during the start itself.
    """
    if reason and not context.guards.allow_forbidden:
        raise error(f"{reason}; this start has the same image and arguments.", fix=FIX)


def clear_forbidden(state: StateFolder, spec: Mapping[str, Any]) -> None:
    """Allow this configuration again, after a server that uses it has been verified."""
    key = start_guard.configuration_key(spec) if spec else ""
    rows = [row for row in _list_forbidden(state) if row.get("key") != key]
    if rows:
        state.write(FORBIDDEN_RECORD, {"rows": rows})
    else:
        state.remove(FORBIDDEN_RECORD)
    state.remove(LAST_OUTAGE_RECORD)

"""Detection of a host that went down under a guard: from the surviving samples, recorded once, and not repeated automatically.

A guard's ring buffer names the boot in which it was written. A ring of an earlier boot without an end was cut off with its host.
Memory is to blame only if the last samples show it: a power cut with plenty of memory is reported, and forbids nothing.
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
from sparkwright.guard import samples as rings
from sparkwright.guard.judge import FLOOR_SHARE, LOW_SHARE
from sparkwright.host.containers import containers, lifecycle
from sparkwright.host.machine import Machine
from sparkwright.host.memory import start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import history, incidents
from sparkwright.host.state import StateFolder
from sparkwright.trust.names import STEP
from sparkwright.units import GIB, gib

NAME = "lost"
#: configurations with which the host went down and that were not verified since; verifying another one does not remove them
FORBIDDEN, FORBIDDEN_KEPT = "lost_configurations", 16
#: suffix of a ring that was reported
SETTLED = ".lost"
#: memory is to blame if it would have been exhausted within this time, seconds
SOON_S = 10.0
#: period over which the last rate is computed, seconds
RATE_S = 2.0
WHAT = "host went down"
FIX = "Give the recipe less memory or a shorter context; `--anyway` of deploy, restart, switch and rollback starts it as it is."


@dataclass(frozen=True, slots=True)
class Lost:
    """A host that went down, by the last samples of a guard."""

    ring: Path
    name: str
    container_id: str
    #: the configuration, see `start_guard.key_of`
    key: str
    server: str
    run: str
    #: "starting" or "serving"
    what: str
    stage: str
    #: seconds since the epoch, of the last sample that reached the disk
    at_s: float
    available_bytes: int
    #: bytes per second
    rate: float
    #: whether the memory was nearly gone
    short: bool

    @property
    def sentence(self) -> str:
        """A sentence: when it went down, during what, and with how much memory."""
        falling = f", falling {self.rate / GIB:.1f} GiB/s" if self.rate > GIB / 20 else ""
        stage = f", stage {self.stage!r}" if self.stage else ""
        blame = "" if self.short else "; memory was not short"
        left = f"{gib(self.available_bytes)} GiB available{falling}"
        at = units.moment(self.at_s, units.MINUTE)
        return f"the host went down at {at} while {self.name} was {self.what}{stage} (last sample: {left}{blame})"


def find(state: StateFolder, machine: Machine) -> list[Lost]:
    """Return the unrecorded times that this host went down under a guard, oldest first."""
    return sorted(_unsettled(state, start_guard.boot_of(machine)), key=lambda lost: lost.at_s)


def _unsettled(state: StateFolder, boot: str) -> Iterator[Lost]:
    for path in start_guard.folder(state).glob(f"*{start_guard.SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):
            about, samples = rings.read(str(path))
            if about.get("state") == "guarding" and boot and about.get("boot") not in (None, "", boot) and samples:
                yield _of(path, about, samples)


def _of(path: Path, about: dict[str, str], samples: list[tuple[float, int, int, float]]) -> Lost:
    at_s, available, _, _ = samples[-1]
    before = next((sample for sample in samples if at_s - sample[0] <= RATE_S), samples[-1])
    rate = max(0.0, (before[1] - available) / (at_s - before[0])) if at_s > before[0] else 0.0
    total = int(about.get("total", "0"))
    server = about.get("server", "")
    return Lost(
        ring=path,
        name=about.get("name", "") or "a server",
        container_id=about.get("id", ""),
        key=about.get("key", ""),
        server=server if STEP.fullmatch(server) else "",
        run=about.get("run", ""),
        what="serving" if about.get("what") == "serving" else "starting",
        stage=about.get("stage", ""),
        at_s=at_s,
        available_bytes=available,
        rate=rate,
        short=available < total * LOW_SHARE or available - rate * SOON_S < total * FLOOR_SHARE,
    )


def settle(context: Context) -> list[Lost]:
    """Record what `find` finds: history, incident, and the block on the next start. Returns the findings."""
    found = find(context.state, context.machine)
    for lost in found:
        context.note(f"{lost.sentence}.")
        _record(context, lost)
    return found


def _record(context: Context, lost: Lost) -> None:
    run = lost.run if STEP.fullmatch(lost.run) else context.run_id
    own = dataclasses.replace(context, state=StateFolder(context.state.path, lost.server), run_id=run)
    if lost.short:
        row = {"key": lost.key, "name": lost.name, "container_id": lost.container_id, "since": lost.at_s}
        row |= {"why": lost.sentence, "available_bytes": lost.available_bytes}
        own.state.write(NAME, row)
        _forbid(own.state, row)
        _take_policy(own, lost)
    history.append(own, WHAT, container_id=lost.container_id, why=lost.sentence)
    try:
        incidents.save(own, lost.name, lost.sentence)
    except OSError as error:
        context.note(f"cannot save the incident: {error.strerror}")
    with contextlib.suppress(OSError):
        lost.ring.rename(lost.ring.with_suffix(SETTLED))


def _take_policy(context: Context, lost: Lost) -> None:
    """Remove the container's restart policy. If the engine does not answer yet, the container's next check reports the fault."""
    with contextlib.suppress(Exception):
        found = containers.inspect(context.docker(), lost.container_id)
        if found is not None and found["HostConfig"]["RestartPolicy"]["Name"] not in ("", "no"):
            lifecycle.set_policy(context, found, "no")
            context.note(f"the restart policy of {lost.name} is now no")


def message(state: StateFolder, machine: Machine) -> str:
    """Return the sentence for a status: an unrecorded finding, else the reason for a block; empty for neither."""
    found = find(state, machine)
    return found[-1].sentence if found else str(remembered(state).get("why", ""))


def remembered(state: StateFolder) -> dict[str, Any]:
    """Return the configuration with which the host went down, unless a server was verified since: key, name, since, why."""
    return state.read(NAME) or {}


def _forbid(state: StateFolder, row: dict[str, Any]) -> None:
    rows = [old for old in _forbidden(state) if old.get("key") != row["key"]]
    state.write(FORBIDDEN, {"rows": [*rows, row][-FORBIDDEN_KEPT:]})


def _forbidden(state: StateFolder) -> list[dict[str, Any]]:
    """Return the configurations that must not start without confirmation, oldest first."""
    rows = (state.read(FORBIDDEN) or {}).get("rows")
    kept = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    last = remembered(state)
    return [*kept, last] if last else kept


def forbids(state: StateFolder, spec: Mapping[str, Any], container_id: str = "") -> str:
    """Return the reason why this container must not be started without confirmation; empty if it may.

    Args:
        state: of the server.
        spec: the container as it is or will be created; empty if unknown.
        container_id: of an existing container; it is recognized even without its spec.
    """
    key = start_guard.key_of(spec) if spec else ""
    return _why(state, lambda row: row.get("key") == key or (container_id and row.get("container_id") == container_id))


def forbids_start(state: StateFolder, start: Mapping[str, Any]) -> str:
    """Return the reason why a start must not be repeated, by image and arguments in the form of `started_with.start_key`."""
    wanted = (start.get("arguments"), start.get("image"))
    return _why(state, lambda row: _parts(str(row.get("key", ""))) == wanted) if all(wanted) else ""


def _why(state: StateFolder, matches: Callable[[dict[str, Any]], object]) -> str:
    return next((str(row.get("why", "")) for row in reversed(_forbidden(state)) if row.get("key") and matches(row)), "")


def _parts(key: str) -> tuple[str, str]:
    """Return the arguments and the image of a key, the image by digest if it has one."""
    arguments, _, image = key.partition("@")
    return arguments, image.partition("@")[2] or image


def refuse(context: Context, why: str, error: type[SparkwrightError] = Refused) -> None:
    """Raise an error if a start is forbidden and `--anyway` was not passed.

    Args:
        context: of the run.
        why: as `forbids` returns it.
        error: Refused before anything was changed, Failed at the start itself.
    """
    if why and not context.guards.anyway:
        raise error(f"{why}: with this image and these arguments.", fix=FIX)


def verified(state: StateFolder, spec: Mapping[str, Any]) -> None:
    """Remove outdated blocks after a server with this configuration was verified."""
    key = start_guard.key_of(spec) if spec else ""
    rows = [row for row in _forbidden(state) if row.get("key") != key]
    if rows:
        state.write(FORBIDDEN, {"rows": rows})
    else:
        state.remove(FORBIDDEN)
    state.remove(NAME)

"""One-time events of a cluster member: its rank is killed, its host reboots, or a stale rank is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from sparkwright.guard import samples as rings
from sparkwright.sandbox import system
from sparkwright.sandbox.docker.container import Container
from sparkwright.sandbox.docker.containers import Containers
from sparkwright.sandbox.docker.images import digest_of
from sparkwright.sandbox.vllm.engine import Engine
from sparkwright.trust import private

#: tag of another image for a manual start, and name of a leftover container
OTHER_TAG, LEFT = "latest", "left-behind"
LOCK = "home/.local/state/sparkwright/lock"
GUARDS = "home/.local/state/sparkwright/guard"


def happen(fault: str, containers: Containers, folder: Path) -> None:
    """Apply the immediate effect of a fault; nothing for a fault that is no such event.

    Args:
        fault: name of the fault.
        containers: of the simulated host.
        folder: of the simulated Spark.
    """
    event = EVENTS.get(fault)
    if event is not None:
        event(containers, folder)


def _running(containers: Containers) -> list[Container]:
    return [container for container in containers.all.values() if container.running]


def _rank_killed(containers: Containers, folder: Path) -> None:
    del folder
    for container in _running(containers):
        if isinstance(container.engine, Engine):
            container.engine.lose_rank()


def _other_digest(containers: Containers, folder: Path) -> None:
    """Replace the running containers by ones with the same name and arguments, from an image with another digest."""
    del folder
    other = digest_of(OTHER_TAG)
    containers.hold(other, OTHER_TAG)
    for container in _running(containers):
        _made_anew(containers, container)
        container.image = other
    containers.save()


def _left_behind(containers: Containers, folder: Path) -> None:
    """Replace the running containers by ones with another name and id, which the host never verified."""
    del folder
    for container in _running(containers):
        _made_anew(containers, container)
        containers.rename(container, LEFT)


def _made_anew(containers: Containers, container: Container) -> None:
    """Give a container a new id. Ids last for a container's life, so this is one that the host never verified."""
    del containers.all[container.id]
    container.id = secrets.token_hex(32)
    containers.all[container.id] = container


def _reboot(containers: Containers, folder: Path) -> None:
    """End all processes of the host at once, including a deploy's runner, then restart the containers with a restart policy."""
    for container in power_off(containers, folder):
        containers.come_back(container)
    system.new_boot(folder / "root")


def power_off(containers: Containers, folder: Path) -> list[Container]:
    """End all processes of the host at once: a deploy's runner, the guards, the containers. Return the containers that ran."""
    lock = folder / LOCK
    if private.held(lock):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(int(json.loads(lock.read_text())["pid"]), signal.SIGKILL)
    for ring in (folder / GUARDS).glob("*.ring"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            about, _ = rings.read(str(ring))
            if about["state"] == "guarding":
                os.kill(int(about["pid"]), signal.SIGKILL)
    ran = _running(containers)
    for container in ran:
        stopped = container.asked_to_stop
        container.asked_to_stop = True
        container.power_off()
        container.asked_to_stop = stopped
    return ran


EVENTS: dict[str, Callable[[Containers, Path], None]] = {
    "rank-killed": _rank_killed,
    "other-digest": _other_digest,
    "leftover-member": _left_behind,
    "reboot": _reboot,
}

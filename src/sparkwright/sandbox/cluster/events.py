"""What happens to a member of a cluster at once: its rank is killed, its host reboots, or an old rank is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from sparkwright.guard import sample_file as rings
from sparkwright.sandbox import system
from sparkwright.sandbox.docker.container import Container
from sparkwright.sandbox.docker.containers import Containers
from sparkwright.sandbox.docker.images import digest_of
from sparkwright.sandbox.vllm.engine import Engine
from sparkwright.trust import private

#: what it is started with again by hand
OTHER_TAG, LEFT = "latest", "left-behind"
LOCK = "home/.local/state/sparkwright/lock"
GUARDS = "home/.local/state/sparkwright/guard"


def happen(fault: str, containers: Containers, folder: Path) -> None:
    """Do what a fault does now. folder: of the simulated Spark. Nothing for a fault that is no such event."""
    event = EVENTS.get(fault)
    if event is not None:
        event(containers, folder)


def _running(containers: Containers) -> list[Container]:
    return [one for one in containers.all.values() if one.running]


def _rank_killed(containers: Containers, folder: Path) -> None:
    del folder
    for one in _running(containers):
        if isinstance(one.engine, Engine):
            one.engine.lose_rank()


def _other_digest(containers: Containers, folder: Path) -> None:
    """Another container of the same name and arguments, from an image of another digest."""
    del folder
    other = digest_of(OTHER_TAG)
    containers.hold(other, OTHER_TAG)
    for one in _running(containers):
        _made_anew(containers, one)
        one.image = other
    containers.save()


def _left_behind(containers: Containers, folder: Path) -> None:
    """Its container is another one, of another name: none that the host has verified."""
    del folder
    for one in _running(containers):
        _made_anew(containers, one)
        containers.rename(one, LEFT)


def _made_anew(containers: Containers, one: Container) -> None:
    """A container has its id for life: this is another one, which the host never verified."""
    del containers.all[one.id]
    one.id = secrets.token_hex(32)
    containers.all[one.id] = one


def _reboot(containers: Containers, folder: Path) -> None:
    """Every process of the host ends at once, the runner of a deploy too; containers with a policy start again."""
    for one in power_off(containers, folder):
        containers.come_back(one)
    system.new_boot(folder / "root")


def power_off(containers: Containers, folder: Path) -> list[Container]:
    """End every process of the host at once: the runner of a deploy, the guards of starts, containers. Returns those that ran."""
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
    for one in ran:
        stopped = one.asked_to_stop
        one.asked_to_stop = True
        one.power_off()
        one.asked_to_stop = stopped
    return ran


EVENTS: dict[str, Callable[[Containers, Path], None]] = {
    "rank-killed": _rank_killed,
    "other-digest": _other_digest,
    "leftover-member": _left_behind,
    "reboot": _reboot,
}

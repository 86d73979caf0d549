"""The part of a simulated Spark that makes it a cluster's member: its fabric link, and faults that happen once."""

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

#: adapter, interface and the third byte of its subnet: each half has a subnet of its own
HALVES = (("rocep1s0f1", "enp1s0f1np1", 0), ("roceP2p1s0f1", "enP2p1s0f1np1", 1))
INTERFACES = tuple(interface for _, interface, _ in HALVES)
MAPPED = "0000:0000:0000:0000:0000:ffff:7f00:{:02x}{:02x}"
MTU = 9000
#: link speed of a slower cable or port, with one half of it down
DEGRADED = "100 Gb/sec (2X HDR)"


def lay_fabric(root: Path, end: int, *, degraded: bool) -> None:
    """Write its files and programs below a folder."""
    for n, (adapter, interface, net) in enumerate(HALVES):
        up = not (degraded and n)
        at, card = root / f"sys/class/infiniband/{adapter}", root / f"sys/class/net/{interface}"
        texts = {
            at / "ports/1/state": "4: ACTIVE" if up else "1: DOWN",
            at / "ports/1/rate": DEGRADED if degraded else "200 Gb/sec (2X NDR)",
            at / "fw_ver": "28.45.4028",
            at / f"device/net/{interface}/mtu": str(MTU),
            at / "ports/1/gids/0": "fe80:0000:0000:0000:4ebb:47ff:fe00:0001",
            at / "ports/1/gid_attrs/types/0": "RoCE v2",
            at / "ports/1/gids/3": MAPPED.format(net, end),
            at / "ports/1/gid_attrs/types/3": "RoCE v2",
            card / "mtu": str(MTU),
            card / "carrier": str(int(up)),
            card / "operstate": "up" if up else "down",
            card / "device/current_link_speed": "32.0 GT/s PCIe",
            card / "device/current_link_width": "4",
        }
        for path, text in texts.items():
            system.written(path, f"{text}\n")
    for name, script in _programs(end).items():
        system.written(root / "usr/bin" / name, f"#!/bin/sh\n{script}\n").chmod(0o755)


def _programs(end: int) -> dict[str, str]:
    rows = [
        {"ifname": interface, "addr_info": [{"local": f"127.0.{net}.{end}", "prefixlen": 24}]}
        for _, interface, net in HALVES
    ]
    route = json.dumps([{"dst": "sandbox", "dev": INTERFACES[0]}])
    return {
        "ip": f"""case "$*" in *" addr") echo '{json.dumps(rows)}' ;; *) echo '{route}' ;; esac""",
        "ping": "exit 0",
    }


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

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
FABRIC_HALVES = (("rocep1s0f1", "enp1s0f1np1", 0), ("roceP2p1s0f1", "enP2p1s0f1np1", 1))
INTERFACES = tuple(interface for _, interface, _ in FABRIC_HALVES)
MAPPED_GID = "0000:0000:0000:0000:0000:ffff:7f00:{:02x}{:02x}"
MTU = 9000
#: link speed of a slower cable or port, with one half of it down
DEGRADED_RATE = "100 Gb/sec (2X HDR)"


def write_fabric_files(root: Path, host_number: int, *, degraded: bool) -> None:
    """Write its files and programs below a folder."""
    for n, (adapter, interface, net) in enumerate(FABRIC_HALVES):
        is_up = not (degraded and n)
        adapter_path, interface_path = root / f"sys/class/infiniband/{adapter}", root / f"sys/class/net/{interface}"
        texts = {
            adapter_path / "ports/1/state": "4: ACTIVE" if is_up else "1: DOWN",
            adapter_path / "ports/1/rate": DEGRADED_RATE if degraded else "200 Gb/sec (2X NDR)",
            adapter_path / "fw_ver": "28.45.4028",
            adapter_path / f"device/net/{interface}/mtu": str(MTU),
            adapter_path / "ports/1/gids/0": "fe80:0000:0000:0000:4ebb:47ff:fe00:0001",
            adapter_path / "ports/1/gid_attrs/types/0": "RoCE v2",
            adapter_path / "ports/1/gids/3": MAPPED_GID.format(net, host_number),
            adapter_path / "ports/1/gid_attrs/types/3": "RoCE v2",
            interface_path / "mtu": str(MTU),
            interface_path / "carrier": str(int(is_up)),
            interface_path / "operstate": "up" if is_up else "down",
            interface_path / "device/current_link_speed": "32.0 GT/s PCIe",
            interface_path / "device/current_link_width": "4",
        }
        for path, text in texts.items():
            system.write_file(path, f"{text}\n")
    for name, script in _fabric_programs(host_number).items():
        system.write_file(root / "usr/bin" / name, f"#!/bin/sh\n{script}\n").chmod(0o755)


def _fabric_programs(host_number: int) -> dict[str, str]:
    rows = [
        {"ifname": interface, "addr_info": [{"local": f"127.0.{net}.{host_number}", "prefixlen": 24}]}
        for _, interface, net in FABRIC_HALVES
    ]
    route = json.dumps([{"dst": "sandbox", "dev": INTERFACES[0]}])
    return {
        "ip": f"""case "$*" in *" addr") echo '{json.dumps(rows)}' ;; *) echo '{route}' ;; esac""",
        "ping": "exit 0",
    }


#: tag of another image for a manual start, and name of a leftover container
OTHER_TAG, LEFTOVER_NAME = "latest", "left-behind"
LOCK_PATH = "home/.local/state/sparkwright/lock"
GUARDS_PATH = "home/.local/state/sparkwright/guard"


def apply_event(fault: str, containers: Containers, folder: Path) -> None:
    """Apply the immediate effect of a fault; nothing for a fault that is no such event.

    Args:
        fault: name of the fault.
        containers: of the simulated host.
        folder: of the simulated Spark.
    """
    event = EVENTS.get(fault)
    if event is not None:
        event(containers, folder)


def _running_containers(containers: Containers) -> list[Container]:
    return [container for container in containers.all.values() if container.running]


def _kill_rank(containers: Containers, folder: Path) -> None:
    del folder
    for container in _running_containers(containers):
        if isinstance(container.engine, Engine):
            container.engine.kill_rank()


def _replace_image(containers: Containers, folder: Path) -> None:
    """Replace the running containers by ones with the same name and arguments, from an image with another digest."""
    del folder
    other = digest_of(OTHER_TAG)
    containers.add_image(other, OTHER_TAG)
    for container in _running_containers(containers):
        _renew_id(containers, container)
        container.image = other
    containers.save()


def _leave_container(containers: Containers, folder: Path) -> None:
    """Replace the running containers by ones with another name and id, which the host never verified."""
    del folder
    for container in _running_containers(containers):
        _renew_id(containers, container)
        containers.rename(container, LEFTOVER_NAME)


def _renew_id(containers: Containers, container: Container) -> None:
    """Give a container a new id. Ids last for a container's life, so this is one that the host never verified."""
    del containers.all[container.id]
    container.id = secrets.token_hex(32)
    containers.all[container.id] = container


def _reboot(containers: Containers, folder: Path) -> None:
    """End all processes of the host at once, including a deploy's runner, then restart the containers with a restart policy."""
    for container in power_off(containers, folder):
        containers.restart_by_policy(container)
    system.new_boot(folder / "root")


def power_off(containers: Containers, folder: Path) -> list[Container]:
    """End all processes of the host at once: a deploy's runner, the guards, the containers. Return the containers that ran."""
    lock = folder / LOCK_PATH
    if private.is_locked(lock):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(int(json.loads(lock.read_text())["pid"]), signal.SIGKILL)
    for ring in (folder / GUARDS_PATH).glob("*.ring"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            header, _ = rings.read(str(ring))
            if header["state"] == "guarding":
                os.kill(int(header["pid"]), signal.SIGKILL)
    were_running = _running_containers(containers)
    for container in were_running:
        stop_requested = container.asked_to_stop
        container.asked_to_stop = True
        container.power_off()
        container.asked_to_stop = stop_requested
    return were_running


EVENTS: dict[str, Callable[[Containers, Path], None]] = {
    "rank-killed": _kill_rank,
    "other-digest": _replace_image,
    "leftover-member": _leave_container,
    "reboot": _reboot,
}

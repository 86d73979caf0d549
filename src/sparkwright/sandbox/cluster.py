"""The fabric link of a simulated Spark, and the faults that are one-time events."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from sparkwright.guard import samples as memory_samples
from sparkwright.sandbox import system
from sparkwright.sandbox.docker.container import Container
from sparkwright.sandbox.docker.containers import Containers
from sparkwright.sandbox.docker.images import digest_of
from sparkwright.sandbox.vllm.engine import Engine
from sparkwright.trust import private

#: the two links of a Spark's fabric port: adapter, interface, and third byte of the IPv4 address
FABRIC_LINKS = (("rocep1s0f1", "enp1s0f1np1", 0), ("roceP2p1s0f1", "enP2p1s0f1np1", 1))
INTERFACES = tuple(interface for _, interface, _ in FABRIC_LINKS)
#: GID of a link: its IPv4 address 127.0.X.Y, mapped to IPv6
MAPPED_GID_TEMPLATE = "0000:0000:0000:0000:0000:ffff:7f00:{:02x}{:02x}"
MTU = 9000
#: link rate during the fault `link-degraded`
DEGRADED_RATE = "100 Gb/sec (2X HDR)"
#: tag of the image that the fault `other-digest` starts
OTHER_TAG = "latest"
#: name that the fault `leftover-member` gives to containers
LEFTOVER_NAME = "left-behind"
#: paths below the folder of a simulated Spark
LOCK_PATH = "home/.local/state/sparkwright/lock"
GUARDS_PATH = "home/.local/state/sparkwright/guard"


def write_fabric_files(root: Path, host_number: int, *, degraded: bool) -> None:
    """Write the files and programs of the fabric link below a root folder."""
    for n, (adapter, interface, address_byte) in enumerate(FABRIC_LINKS):
        is_up = not (degraded and n)
        adapter_path, interface_path = root / f"sys/class/infiniband/{adapter}", root / f"sys/class/net/{interface}"
        texts = {
            adapter_path / "ports/1/state": "4: ACTIVE" if is_up else "1: DOWN",
            adapter_path / "ports/1/rate": DEGRADED_RATE if degraded else "200 Gb/sec (2X NDR)",
            adapter_path / "fw_ver": "28.45.4028",
            adapter_path / f"device/net/{interface}/mtu": str(MTU),
            adapter_path / "ports/1/gids/0": "fe80:0000:0000:0000:4ebb:47ff:fe00:0001",
            adapter_path / "ports/1/gid_attrs/types/0": "RoCE v2",
            adapter_path / "ports/1/gids/3": MAPPED_GID_TEMPLATE.format(address_byte, host_number),
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
    interfaces = [
        {"ifname": interface, "addr_info": [{"local": f"127.0.{address_byte}.{host_number}", "prefixlen": 24}]}
        for _, interface, address_byte in FABRIC_LINKS
    ]
    route = json.dumps([{"dst": "sandbox", "dev": INTERFACES[0]}])
    return {
        "ip": f"""case "$*" in *" addr") echo '{json.dumps(interfaces)}' ;; *) echo '{route}' ;; esac""",
        "ping": "exit 0",
    }


def apply_event(fault: str, containers: Containers, folder: Path) -> None:
    """Apply a fault if it is a one-time event; other faults have no effect here."""
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
    """Replace the running containers with containers that have the same names and arguments, but another image."""
    del folder
    digest = digest_of(OTHER_TAG)
    containers.add_image(digest, OTHER_TAG)
    for container in _running_containers(containers):
        _renew_id(containers, container)
        container.image = digest
    containers.save()


def _rename_to_leftover(containers: Containers, folder: Path) -> None:
    """Replace the running containers with unverified containers that have another name."""
    del folder
    for container in _running_containers(containers):
        _renew_id(containers, container)
        containers.rename(container, LEFTOVER_NAME)


def _renew_id(containers: Containers, container: Container) -> None:
    """Give a container a new id, so that it looks like a new container that has never been verified."""
    del containers.all[container.id]
    container.id = secrets.token_hex(32)
    containers.all[container.id] = container


def _reboot(containers: Containers, folder: Path) -> None:
    """Kill all processes of the host, then restart the containers that have a restart policy."""
    for container in power_off(containers, folder):
        containers.restart_by_policy(container)
    system.set_new_boot_id(folder / "root")


def power_off(containers: Containers, folder: Path) -> list[Container]:
    """Kill the host's processes: any deploy, the memory guards and the containers. Return the containers that were running."""
    lock_path = folder / LOCK_PATH
    if private.is_locked(lock_path):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(int(json.loads(lock_path.read_text())["pid"]), signal.SIGKILL)
    for ring_path in (folder / GUARDS_PATH).glob("*.ring"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            header, _ = memory_samples.read(str(ring_path))
            if header["state"] == "guarding":
                os.kill(int(header["pid"]), signal.SIGKILL)
    running_containers = _running_containers(containers)
    for container in running_containers:
        stop_was_requested = container.stop_requested
        container.stop_requested = True  # prevents a restart before the next boot
        container.power_off()
        container.stop_requested = stop_was_requested
    return running_containers


EVENTS: dict[str, Callable[[Containers, Path], None]] = {
    "rank-killed": _kill_rank,
    "other-digest": _replace_image,
    "leftover-member": _rename_to_leftover,
    "reboot": _reboot,
}

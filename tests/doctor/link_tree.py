"""The files and programs of a host with a fast link to another: both halves of a ConnectX port, as on a Spark."""

import json
from pathlib import Path
from typing import Any

MAPPED = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}"
MEMINFO = "MemTotal: 125513728 kB\nMemAvailable: 118000000 kB\nCmaTotal: 32768 kB\nCmaFree: 30000 kB\n"
HALVES = (("rocep1s0f1", "enp1s0f1np1", 100), ("roceP2p1s0f1", "enP2p1s0f1np1", 101))


def host_files(
    number: int, *, mtu: int = 9000, kernel: str = "6.14.0-1015-nvidia", firmware: str = "28.45.4028"
) -> dict[str, str]:
    """Return the files by path of the host whose addresses end in this number."""
    contents = {"/proc/sys/kernel/osrelease": f"{kernel}\n", "/proc/cmdline": "quiet\n", "/proc/meminfo": MEMINFO}
    for adapter, interface, net in HALVES:
        at, card = f"/sys/class/infiniband/{adapter}", f"/sys/class/net/{interface}"
        contents |= {
            f"{at}/ports/1/state": "4: ACTIVE\n",
            f"{at}/ports/1/rate": "200 Gb/sec (2X NDR)\n",
            f"{at}/fw_ver": f"{firmware}\n",
            f"{at}/device/net/{interface}/mtu": f"{mtu}\n",
            f"{at}/ports/1/gids/0": "fe80:0000:0000:0000:4ebb:47ff:fe00:0001\n",
            f"{at}/ports/1/gid_attrs/types/0": "RoCE v2\n",
            f"{at}/ports/1/gids/3": MAPPED.format(192, 168, net, number) + "\n",
            f"{at}/ports/1/gid_attrs/types/3": "RoCE v2\n",
            f"{card}/mtu": f"{mtu}\n",
            f"{card}/carrier": "1\n",
            f"{card}/device/current_link_speed": "32.0 GT/s PCIe\n",
            f"{card}/device/current_link_width": "4\n",
        }
    return contents


def host_programs(number: int, *, over: str = "enp1s0f1np1", ping: str = "exit 0") -> dict[str, str]:
    """Return `ip` and `ping`. over: the interface of every route. ping: the body of the program."""
    rows = [
        {"ifname": interface, "addr_info": [{"local": f"192.168.{net}.{number}", "prefixlen": 24}]}
        for _, interface, net in HALVES
    ]
    route = json.dumps([{"dst": "x", "dev": over}])
    return {"ip": f"""case "$*" in *" addr") echo '{json.dumps(rows)}' ;; *) echo '{route}' ;; esac""", "ping": ping}


def write_host(
    root: Path, number: int, *, over: str = "enp1s0f1np1", ping: str = "exit 0", driver: str = "580.95.05", **files: Any
) -> None:
    """Write the files and programs of a host below a folder. files: options of host_files."""
    program_bodies = {**host_programs(number, over=over, ping=ping), "nvidia-smi": f"echo 'NVIDIA GB10, {driver}'"}
    scripts = {f"/usr/bin/{name}": f"#!/bin/sh\n{text}\n" for name, text in program_bodies.items()}
    for name, text in {**host_files(number, **files), **scripts}.items():
        path = Path(f"{root}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

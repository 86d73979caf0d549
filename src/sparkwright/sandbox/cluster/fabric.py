"""The fabric link of a simulated Spark: both halves of a ConnectX port, as the kernel, `ip` and `ping` of a Spark show them.

The cable is this machine's loopback: the head's address is 127.0.0.1, where its runner and its rank listen.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

#: adapter, interface and the third byte of its subnet: each half has a subnet of its own
HALVES = (("rocep1s0f1", "enp1s0f1np1", 0), ("roceP2p1s0f1", "enP2p1s0f1np1", 1))
INTERFACES = tuple(interface for _, interface, _ in HALVES)
#: subfolder of the sandbox for the hosts with a link
HOSTS = "hosts"
MAPPED = "0000:0000:0000:0000:0000:ffff:7f00:{:02x}{:02x}"
MTU = 9000
#: link speed of a slower cable or port, with one half of it down
DEGRADED = "100 Gb/sec (2X HDR)"


def number(host: str) -> int:
    """Return the number of a host on the link, taken from the end of its name; 0 without a link."""
    found = re.search(r"\d{1,2}$", host)
    return int(found[0]) if found else 0


def place(folder: Path) -> int:
    """Return the number on the link of a simulated Spark's folder."""
    return number(folder.name) if folder.parent.name == HOSTS else 0


def lay(root: Path, end: int, *, degraded: bool) -> None:
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
            _write(path, f"{text}\n")
    for name, script in _programs(end).items():
        _write(root / "usr/bin" / name, f"#!/bin/sh\n{script}\n").chmod(0o755)


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


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path

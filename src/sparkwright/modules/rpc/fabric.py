from __future__ import annotations

import getpass
import time
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address

from sparkwright.doctor import fabric, peer_path
from sparkwright.doctor.checks import fabric as check
from sparkwright.doctor.host import Host, version_in
from sparkwright.errors import Failed
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg

MOST_PEERS = 16


class Fabric(Module["Fabric.Args"]):
    """The fast links of this host to others, and whether it reaches them there. Changes nothing, and needs no root.

    Reads the RDMA adapters with their interfaces, rates, MTU, addresses, RoCE v2 GIDs and firmware. Each peer is looked up in
    the routes and pinged twice with a frame of the interface's whole MTU.

    Returns: links (a row an adapter), findings (as `doctor` has them), paths (a row a peer), kernel, driver (NVIDIA's; empty
    where there is none), now_s (the host's clock at the end, seconds since the epoch).
    """

    @dataclass(frozen=True)
    class Args:
        peers: list[str] = arg("IPv4 addresses of other hosts that should be reached over these links", default=())

    def run(self, args: Args, context: Context) -> Result:
        if len(args.peers) > MOST_PEERS:
            raise Failed(f"at most {MOST_PEERS} peers.")
        host = Host(context, getpass.getuser())
        links = fabric.links(host)
        paths = [peer_path.to(host, _address(peer)) for peer in args.peers]
        data = {
            "links": [link.to_json() for link in links],
            "findings": [finding.to_json() for finding in check.check(host)],
            "paths": [asdict(path) for path in paths],
            "kernel": (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100],
            "driver": version_in((host.gpu() or ("", ""))[1])[:100],
            "now_s": time.time(),
        }
        active = [link.adapter for link in links if link.active]
        return Result(msg=f"up: {', '.join(active)}" if active else "no link is up", data=data)


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise Failed(f"{text!r} is not an IPv4 address.") from None

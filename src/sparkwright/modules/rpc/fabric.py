from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any

from sparkwright.doctor import fabric
from sparkwright.doctor.checks import fabric as check
from sparkwright.doctor.host import Host
from sparkwright.errors import Failed
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg

#: what a ping of a whole frame leaves to the IPv4 and ICMP headers
HEADERS_BYTES = 28
#: two packets, a second apart, two seconds for each answer
PING = ("ping", "-n", "-q", "-c", "2", "-W", "2", "-M", "do")
PING_S = 10.0
MOST_PEERS = 16


@dataclass(frozen=True, slots=True)
class Path:
    """How a peer is reached. interface: of the route, empty while unknown. mtu: of it. reached: whether a frame of that size came
    back in one piece; None: that could not be tried.
    """

    peer: str
    interface: str = ""
    mtu: int = 0
    reached: bool | None = None


class Fabric(Module["Fabric.Args"]):
    """The fast links of this host to others, and whether it reaches them there. Changes nothing, and needs no root.

    Reads the RDMA adapters with their interfaces, rates, MTU, addresses, RoCE v2 GIDs and firmware. Each peer is looked up in
    the routes and pinged twice with a frame of the interface's whole MTU.

    Returns: links (a row an adapter), findings (as `doctor` has them), paths (a row a peer), kernel.
    """

    @dataclass(frozen=True)
    class Args:
        peers: list[str] = arg("IPv4 addresses of other hosts that should be reached over these links", default=())

    def run(self, args: Args, context: Context) -> Result:
        if len(args.peers) > MOST_PEERS:
            raise Failed(f"at most {MOST_PEERS} peers.")
        host = Host(context, getpass.getuser())
        links = fabric.links(host)
        paths = [_path(host, str(_address(peer))) for peer in args.peers]
        data = {
            "links": [one.to_json() for one in links],
            "findings": [one.to_json() for one in check.check(host)],
            "paths": [asdict(one) for one in paths],
            "kernel": (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100],
        }
        active = [one.adapter for one in links if one.active]
        return Result(msg=f"up: {', '.join(active)}" if active else "no link is up", data=data)


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise Failed(f"{text!r} is not an IPv4 address.") from None


def _path(host: Host, peer: str) -> Path:
    route = _route(host, peer)
    interface = str(route.get("dev") or "")
    if not fabric.NAME.fullmatch(interface):
        return Path(peer)
    shown = (host.read(f"{fabric.INTERFACES}/{interface}/mtu") or "").strip()
    mtu = int(shown) if shown.isdecimal() and len(shown) < 8 else 0
    if mtu <= HEADERS_BYTES:
        return Path(peer, interface)
    answer = host.output(*PING, "-s", str(mtu - HEADERS_BYTES), "-I", interface, peer, timeout_s=PING_S)
    return Path(peer, interface, mtu, None if answer is None else answer.ok)


def _route(host: Host, peer: str) -> Mapping[str, Any]:
    try:
        rows = json.loads(host.printed("ip", "-j", "route", "get", peer) or "[]")
        return rows[0] if rows and isinstance(rows[0], dict) else {}
    except (ValueError, KeyError, RecursionError):
        return {}

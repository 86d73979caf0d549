"""The network path from this host to another: its interface, and a test with frames of full size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from sparkwright.doctor import fabric
from sparkwright.doctor.host import Host

#: IPv4 and ICMP headers of a ping of a whole frame
HEADERS_BYTES = 28
#: two packets, a second apart, two seconds for each answer
PING = ("ping", "-n", "-q", "-c", "2", "-W", "2", "-M", "do")
PING_S = 10.0


@dataclass(frozen=True, slots=True)
class Path:
    """The network path to a peer."""

    peer: str
    #: of the route; empty while unknown
    interface: str = ""
    #: of that interface
    mtu: int = 0
    #: a frame of that size came back in one piece; None: that could not be tried
    reached: bool | None = None


def to(host: Host, address: IPv4Address) -> Path:
    """Return the path to an address, tested with two pings; takes a second."""
    peer = str(address)
    interface = str(_route(host, peer).get("dev") or "")
    if not fabric.NAME.fullmatch(interface):
        return Path(peer)
    shown = (host.read(f"{fabric.INTERFACES}/{interface}/mtu") or "").strip()
    mtu = int(shown) if shown.isdecimal() and len(shown) < 8 else 0
    if mtu <= HEADERS_BYTES:
        return Path(peer, interface)
    answer = host.output(*PING, "-s", str(min(mtu, 65535) - HEADERS_BYTES), "-I", interface, peer, timeout_s=PING_S)
    return Path(peer, interface, mtu, None if answer is None else answer.ok)


def _route(host: Host, peer: str) -> Mapping[str, Any]:
    try:
        rows = json.loads(host.printed("ip", "-j", "route", "get", peer) or "[]")
    except (ValueError, RecursionError):
        return {}
    return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}

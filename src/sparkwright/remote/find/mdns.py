"""Discovery of ssh services on the local network: one query by multicast DNS (RFC 6762), with two seconds for the answers.

The query is sent from a port of its own, so answers come to this socket alone (6.7): no group is joined, and an avahi of this
machine keeps port 5353. A host that announces no service is not found: multicast DNS has no wildcards. See decision 30.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time

from sparkwright.remote.find import dns_message
from sparkwright.remote.find.dns_message import PTR, SRV

GROUP = ("224.0.0.251", 5353)
LISTEN_S = 2.0
PACKET_BYTES, MOST_PACKETS, MOST_HOSTS = 9000, 500, 200
#: the services that reveal a host: ssh itself, avahi's workstations (`NAME [02:...]`), and what desktops announce
SERVICES = tuple(f"_{item}._tcp.local" for item in ("ssh", "sftp-ssh", "workstation", "device-info", "smb"))
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.local", re.I)
_WORKSTATION = re.compile(r"([A-Za-z0-9-]{1,63}) \[[0-9a-f:]{17}\]\._workstation\._tcp\.local", re.I)


def hosts(to: tuple[str, int] = GROUP, *, listen_s: float = LISTEN_S) -> list[str]:
    """Return the hosts that answer, NAME.local, each once, by name; none if multicast does not work. Never raises.

    to: the address of the query; a test replaces it.
    """
    found: set[str] = set()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            _ask(asking, to)
            for packet in _heard(asking, listen_s):
                found |= _named(packet)
                if len(found) >= MOST_HOSTS:
                    break
    except OSError:
        return sorted(found)
    return sorted(found)


def _ask(asking: socket.socket, to: tuple[str, int]) -> None:
    """Send the query on every network of this machine, except the loopback."""
    packet = dns_message.question([(name, PTR) for name in SERVICES])
    if to != GROUP:
        asking.sendto(packet, to)
        return
    asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    for number, name in socket.if_nameindex():
        if not name.startswith("lo"):
            with contextlib.suppress(OSError):  # one that is down, or without IPv4
                which = struct.pack("=4s4si", socket.inet_aton(to[0]), b"\0" * 4, number)
                asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, which)
                asking.sendto(packet, to)


def _heard(asking: socket.socket, listen_s: float) -> list[bytes]:
    packets: list[bytes] = []
    until_s = time.monotonic() + listen_s
    while (left_s := until_s - time.monotonic()) > 0 and len(packets) < MOST_PACKETS:
        asking.settimeout(left_s)
        try:
            packets.append(asking.recv(PACKET_BYTES))
        except TimeoutError:
            break
    return packets


def _named(packet: bytes) -> set[str]:
    """Return the hosts in an answer: those of its services, and workstations by their own name."""
    try:
        rows = dns_message.records(packet)
    except ValueError:
        return set()
    names = [text for _, kind, text in rows if kind == SRV]
    names += [f"{at[1]}.local" for _, kind, text in rows if kind == PTR and (at := _WORKSTATION.fullmatch(text))]
    return {name.lower() for name in names if HOST.fullmatch(name)}

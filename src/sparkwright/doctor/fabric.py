"""The fast links of a host, as reported by the kernel: RDMA adapters with their interfaces, rates and addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from sparkwright.doctor.host import Host

ADAPTERS = "/sys/class/infiniband"
INTERFACES = "/sys/class/net"
#: limits, which are higher than on any Spark
MOST_ADAPTERS, MOST_GIDS, MOST_ADDRESSES = 16, 64, 8
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
RATE = re.compile(r"(\d{1,4}(?:\.\d)?) Gb/sec")
FIRMWARE = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,6}")
#: an IPv4 address as written in a GID, ::ffff:a.b.c.d
MAPPED = re.compile(r"(?:0000:){5}ffff:([0-9a-f]{4}):([0-9a-f]{4})")
#: name of an adapter: a ConnectX port of a Spark has two PCI functions, such as rocep1s0f1 and its twin roceP2p1s0f1 in PCI
#: domain 2
TWIN = re.compile(r"roce(?P<domain>P\d+)?(?P<path>p\d+s\d+(?:f\d+)?)")


@dataclass(frozen=True, slots=True)
class Link:
    """An RDMA adapter and its interface. A value that can't be read is empty, 0 or None."""

    adapter: str
    interface: str
    active: bool
    #: of the link
    rate_gbps: float = 0.0
    mtu: int = 0
    carrier: bool | None = None
    firmware: str = ""
    #: IPv4 addresses with prefix lengths
    addresses: tuple[str, ...] = ()
    #: IPv4 addresses that have a RoCE v2 GID
    gids: tuple[str, ...] = ()
    #: speed of the PCI link as the kernel prints it, such as "32.0 GT/s PCIe x4"
    pci: str = ""

    @property
    def port(self) -> str:
        """The part of the name that the twins share, or the whole name if it is not derived from the PCI path."""
        found = TWIN.fullmatch(self.adapter)
        return found["path"] if found else self.adapter

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def links(host: Host) -> list[Link]:
    """Return the adapters of a host, ordered by name; empty if there are none."""
    adapters = [name for name in host.names_in(ADAPTERS) if NAME.fullmatch(name)][:MOST_ADAPTERS]
    addresses = addresses_of(host) if adapters else {}
    return [_link(host, name, addresses) for name in adapters]


def ports(found: list[Link]) -> dict[str, list[Link]]:
    """Return the links by port, the one in PCI domain 0 first."""
    by_port: dict[str, list[Link]] = {}
    for item in sorted(found, key=lambda link: "P" in link.adapter.removeprefix("roce")):
        by_port.setdefault(item.port, []).append(item)
    return by_port


def only_slower(name: str, found: Sequence[Link]) -> bool:
    """Return True if an interface that is down is half of a port whose other half is up, which halves the ranks' rate."""
    down = next((link for link in found if link.interface == name), None)
    return down is not None and any(link.active and link.port == down.port for link in found if link is not down)


def _link(host: Host, adapter: str, addresses: dict[str, tuple[str, ...]]) -> Link:
    at = f"{ADAPTERS}/{adapter}"
    interface = next((name for name in host.names_in(f"{at}/device/net") if NAME.fullmatch(name)), "")
    net = f"{INTERFACES}/{interface}"
    rate, firmware = RATE.match(_line(host, f"{at}/ports/1/rate")), FIRMWARE.fullmatch(_line(host, f"{at}/fw_ver"))
    carrier = _line(host, f"{net}/carrier")
    return Link(
        adapter=adapter,
        interface=interface,
        active=_line(host, f"{at}/ports/1/state").startswith("4:"),
        rate_gbps=float(rate[1]) if rate else 0.0,
        mtu=_number(_line(host, f"{net}/mtu")),
        carrier={"1": True, "0": False}.get(carrier),
        firmware=firmware[0] if firmware else "",
        addresses=addresses.get(interface, ()),
        gids=tuple(_gids(host, at).values()),
        pci=_pci(host, f"{net}/device"),
    )


def gid_index(host: Host, adapter: str, address: str) -> int | None:
    """Return the current index of an address's RoCE v2 GID in an adapter's table, or None."""
    rows = _gids(host, f"{ADAPTERS}/{adapter}").items()
    return next((index for index, found in rows if found == address), None)


def _gids(host: Host, at: str) -> dict[int, str]:
    """Return the addresses of an adapter's RoCE v2 GIDs, by index."""
    found = {}
    for n in [name for name in host.names_in(f"{at}/ports/1/gids") if name.isdigit()][:MOST_GIDS]:
        mapped = MAPPED.fullmatch(_line(host, f"{at}/ports/1/gids/{n}"))
        if mapped and _line(host, f"{at}/ports/1/gid_attrs/types/{n}") == "RoCE v2":
            found[int(n)] = str(IPv4Address(int(mapped[1] + mapped[2], 16)))
    return found


def _pci(host: Host, at: str) -> str:
    speed, width = _line(host, f"{at}/current_link_speed"), _number(_line(host, f"{at}/current_link_width"))
    return f"{speed} x{width}" if re.fullmatch(r"[\d.]{1,5} GT/s PCIe", speed) and width else ""


def addresses_of(host: Host) -> dict[str, tuple[str, ...]]:
    """Return the IPv4 addresses by interface, as printed by `ip`; empty if it fails."""
    try:
        rows = json.loads(host.printed("ip", "-j", "-4", "addr") or "[]")
        return {row["ifname"]: tuple(_cidrs(row.get("addr_info") or ())) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _cidrs(rows: Any) -> Iterator[str]:
    for row in rows[:MOST_ADDRESSES]:
        yield IPv4Interface((row["local"], row["prefixlen"])).with_prefixlen


def _line(host: Host, path: str) -> str:
    return (host.read(path) or "").strip()[:200]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 8 else 0


#: size of the IPv4 and ICMP headers of a ping
HEADERS_BYTES = 28
#: sends two packets a second apart, with two seconds for each answer
PING = ("ping", "-n", "-q", "-c", "2", "-W", "2", "-M", "do")
PING_S = 10.0


@dataclass(frozen=True, slots=True)
class Path:
    """The network path to a peer."""

    peer: str
    #: interface of the route; empty if unknown
    interface: str = ""
    #: MTU of that interface
    mtu: int = 0
    #: True if a frame of that size came back unfragmented; None if that could not be tested
    reached: bool | None = None


def to(host: Host, address: IPv4Address) -> Path:
    """Return the path to an address, tested with two pings, which takes a second."""
    peer = str(address)
    interface = str(_route(host, peer).get("dev") or "")
    if not NAME.fullmatch(interface):
        return Path(peer)
    shown = (host.read(f"{INTERFACES}/{interface}/mtu") or "").strip()
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

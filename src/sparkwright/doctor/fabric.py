"""The fast network links of a host, as reported by the kernel: RDMA adapters with their interfaces, rates and addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from sparkwright.doctor.host import Host

ADAPTERS_FOLDER = "/sys/class/infiniband"
INTERFACES_FOLDER = "/sys/class/net"
#: limits, higher than the counts on any Spark
MAX_ADAPTERS, MAX_GIDS, MAX_ADDRESSES = 16, 64, 8
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
RATE_PATTERN = re.compile(r"(\d{1,4}(?:\.\d)?) Gb/sec")
FIRMWARE_PATTERN = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,6}")
#: a GID that maps an IPv4 address, ::ffff:a.b.c.d
MAPPED_GID_PATTERN = re.compile(r"(?:0000:){5}ffff:([0-9a-f]{4}):([0-9a-f]{4})")
#: name of an adapter; a ConnectX port of a Spark has two PCI functions, such as rocep1s0f1 and roceP2p1s0f1 in PCI domain 2
TWIN_NAME_PATTERN = re.compile(r"roce(?P<domain>P\d+)?(?P<path>p\d+s\d+(?:f\d+)?)")
#: size of the IPv4 and ICMP headers of a ping
PING_HEADER_BYTES = 28
#: two packets a second apart, with a timeout of two seconds for each reply
PING_COMMAND = ("ping", "-n", "-q", "-c", "2", "-W", "2", "-M", "do")
PING_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Link:
    """An RDMA adapter and its interface. A value that can't be read is empty, 0 or None."""

    adapter: str
    interface: str
    active: bool
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
        """The PCI path in the adapter's name, which both halves of a port share; the whole name if it contains no path."""
        match = TWIN_NAME_PATTERN.fullmatch(self.adapter)
        return match["path"] if match else self.adapter

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """The network path to a peer, and the result of its test."""

    #: address of the peer
    peer: str
    #: interface of the route; empty if unknown
    interface: str = ""
    #: MTU of that interface
    mtu: int = 0
    #: True if an unfragmented packet of that size was answered; None if this was not tested
    reached: bool | None = None


def list_links(host: Host) -> list[Link]:
    """Return the RDMA adapters of a host, ordered by name; empty if there are none."""
    adapters = [name for name in host.list_folder(ADAPTERS_FOLDER) if NAME_PATTERN.fullmatch(name)][:MAX_ADAPTERS]
    addresses = addresses_by_interface(host) if adapters else {}
    return [_read_link(host, name, addresses) for name in adapters]


def group_by_port(links: list[Link]) -> dict[str, list[Link]]:
    """Return the links by port. The link in PCI domain 0 comes first."""
    links_by_port: dict[str, list[Link]] = {}
    for link in sorted(links, key=lambda link: "P" in link.adapter.removeprefix("roce")):
        links_by_port.setdefault(link.port, []).append(link)
    return links_by_port


def has_active_twin(interface: str, links: Sequence[Link]) -> bool:
    """Return True if the other half of an interface's port is up.

    If the interface itself is down, the ranks communicate at half the rate.
    """
    own_link = next((link for link in links if link.interface == interface), None)
    return own_link is not None and any(
        link.active and link.port == own_link.port for link in links if link is not own_link
    )


def _read_link(host: Host, adapter: str, addresses: dict[str, tuple[str, ...]]) -> Link:
    adapter_path = f"{ADAPTERS_FOLDER}/{adapter}"
    interface = next(
        (name for name in host.list_folder(f"{adapter_path}/device/net") if NAME_PATTERN.fullmatch(name)), ""
    )
    interface_path = f"{INTERFACES_FOLDER}/{interface}"
    rate_match = RATE_PATTERN.match(_read_line(host, f"{adapter_path}/ports/1/rate"))
    firmware_match = FIRMWARE_PATTERN.fullmatch(_read_line(host, f"{adapter_path}/fw_ver"))
    carrier = _read_line(host, f"{interface_path}/carrier")
    return Link(
        adapter=adapter,
        interface=interface,
        active=_read_line(host, f"{adapter_path}/ports/1/state").startswith("4:"),
        rate_gbps=float(rate_match[1]) if rate_match else 0.0,
        mtu=_parse_number(_read_line(host, f"{interface_path}/mtu")),
        carrier={"1": True, "0": False}.get(carrier),
        firmware=firmware_match[0] if firmware_match else "",
        addresses=addresses.get(interface, ()),
        gids=tuple(_read_gids(host, adapter_path).values()),
        pci=_read_pci_speed(host, f"{interface_path}/device"),
    )


def gid_index(host: Host, adapter: str, address: str) -> int | None:
    """Return the current index of an address's RoCE v2 GID in an adapter's table, or None."""
    gids = _read_gids(host, f"{ADAPTERS_FOLDER}/{adapter}").items()
    return next((index for index, gid_address in gids if gid_address == address), None)


def _read_gids(host: Host, adapter_path: str) -> dict[int, str]:
    """Return the addresses of an adapter's RoCE v2 GIDs, by index."""
    addresses = {}
    for index in [name for name in host.list_folder(f"{adapter_path}/ports/1/gids") if name.isdigit()][:MAX_GIDS]:
        gid_match = MAPPED_GID_PATTERN.fullmatch(_read_line(host, f"{adapter_path}/ports/1/gids/{index}"))
        if gid_match and _read_line(host, f"{adapter_path}/ports/1/gid_attrs/types/{index}") == "RoCE v2":
            addresses[int(index)] = str(IPv4Address(int(gid_match[1] + gid_match[2], 16)))
    return addresses


def _read_pci_speed(host: Host, device_path: str) -> str:
    speed = _read_line(host, f"{device_path}/current_link_speed")
    width = _parse_number(_read_line(host, f"{device_path}/current_link_width"))
    return f"{speed} x{width}" if re.fullmatch(r"[\d.]{1,5} GT/s PCIe", speed) and width else ""


def addresses_by_interface(host: Host) -> dict[str, tuple[str, ...]]:
    """Return the IPv4 addresses with prefix lengths by interface, as printed by `ip`; empty if it fails."""
    try:
        rows = json.loads(host.read_output("ip", "-j", "-4", "addr") or "[]")
        return {
            row["ifname"]: tuple(
                IPv4Interface((address["local"], address["prefixlen"])).with_prefixlen
                for address in (row.get("addr_info") or ())[:MAX_ADDRESSES]
            )
            for row in rows
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _read_line(host: Host, path: str) -> str:
    return (host.read(path) or "").strip()[:200]


def _parse_number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 8 else 0


def probe_path(host: Host, address: IPv4Address) -> NetworkPath:
    """Return the path to an address after testing it with two pings, which takes a second."""
    peer = str(address)
    interface = str(_find_route(host, peer).get("dev") or "")
    if not NAME_PATTERN.fullmatch(interface):
        return NetworkPath(peer)
    mtu = _parse_number(_read_line(host, f"{INTERFACES_FOLDER}/{interface}/mtu"))
    if mtu <= PING_HEADER_BYTES:
        return NetworkPath(peer, interface)
    size = str(min(mtu, 65535) - PING_HEADER_BYTES)
    result = host.run_program(*PING_COMMAND, "-s", size, "-I", interface, peer, timeout_s=PING_TIMEOUT_S)
    return NetworkPath(peer, interface, mtu, None if result is None else result.ok)


def _find_route(host: Host, peer: str) -> Mapping[str, Any]:
    try:
        rows = json.loads(host.read_output("ip", "-j", "route", "get", peer) or "[]")
    except (ValueError, RecursionError):
        return {}
    return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}

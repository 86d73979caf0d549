"""Rules for the fast links between hosts: what a cluster requires, and what its host files should declare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from itertools import pairwise
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.doctor import fabric, known
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.host import Finding
from sparkwright.fleet.member import Member
from sparkwright.project.inventory.groups import Fabric
from sparkwright.protocol.cluster import clocks_apart
from sparkwright.visible import count


@dataclass(frozen=True)
class Links:
    """The links of one host, as reported by the host."""

    host: str
    links: tuple[Link, ...]
    findings: tuple[Finding, ...] = ()
    #: tested paths to the other hosts, as the module returns them
    paths: tuple[Mapping[str, Any], ...] = ()
    kernel: str = ""
    driver: str = ""
    #: the `fabric` of the host file; None if there is none
    given: Fabric | None = None
    #: bounds in seconds on how far the host's clock is ahead of the laptop's; None if unknown
    ahead_s: tuple[float, float] | None = None

    @property
    def used(self) -> Fabric | None:
        """The fabric that the host file declares, or else the one that the links suggest."""
        return self.given or proposed(self.links)

    @property
    def in_use(self) -> list[Link]:
        """The links of the used fabric, in its order."""
        there = {link.interface: link for link in self.links if link.interface}
        return [there[name] for name in (self.used.interfaces if self.used else ()) if name in there]


def proposed(links: Sequence[Link]) -> Fabric | None:
    """Return the fabric that a host file should declare, or None.

    It is the port with an address that has the most active halves.
    """
    ports = fabric.ports([link for link in links if link.active and link.interface]).values()
    able = [group for group in ports if group[0].addresses]
    best = max(able, key=len, default=None)
    if best is None:
        return None
    found = Fabric(tuple(link.interface for link in best), best[0].addresses[0].partition("/")[0])
    adapters = tuple(link.adapter for link in best)
    return found if found.hcas == adapters else Fabric(found.interfaces, found.address, adapters)


def findings(members: Sequence[Links]) -> list[tuple[str, Finding]]:
    """Return the problems on and between the hosts, each with a host's name ("" for all hosts)."""
    found = [(member.host, finding) for member in members for finding in member.findings if finding.verdict != "ok"]
    found += [(member.host, finding) for member in members for finding in (*_as_written(member), *_paths(member))]
    found += [("", finding) for rule in _BETWEEN for finding in rule(members)]
    return found


def _as_written(links: Links) -> Iterator[Finding]:
    """Yield the differences between a host's file and its actual links."""
    end = links.used
    if end is None:
        yield Finding("fabric", "bad", "no link is up that has an IPv4 address", source=known.PLAYBOOKS)
        return
    there = {link.interface: link for link in links.links if link.interface}
    for name in end.interfaces:
        if name not in there:
            shown = f"no interface {name} with an RDMA adapter; there are: {', '.join(there) or 'none'}"
            yield Finding("fabric", "bad", shown, f"correct `fabric.interfaces` in hosts/{links.host}.yml")
        elif not there[name].active and (name == end.interfaces[0] or not fabric.only_slower(name, links.links)):
            yield Finding("fabric", "bad", f"{name} is down", f"sudo ip link set {name} up")
    first = there.get(end.interfaces[0])
    if first is not None and end.address not in [text.partition("/")[0] for text in first.addresses]:
        shown = f"{first.interface} has {', '.join(first.addresses) or 'no IPv4 address'}, not {end.address}"
        yield Finding("fabric", "bad", shown, f"correct `fabric.address` in hosts/{links.host}.yml")


def _paths(links: Links) -> Iterator[Finding]:
    end = links.used
    for path in links.paths:
        peer, interface = path["peer"], path["interface"]
        if not interface:
            yield Finding("path", "unknown", f"no route to {peer} could be read", "ip route get " + peer)
        elif end is not None and interface not in end.interfaces:
            shown = f"{peer} is reached over {interface}, not over the fabric"
            yield Finding("path", "bad", shown, f"ip route get {peer}", known.PLAYBOOKS)
        elif path["reached"] is None:
            yield Finding("path", "unknown", f"{peer}: ping could not be run")
        elif not path["reached"]:
            shown = f"a frame of {path['mtu']} bytes does not reach {peer} over {interface}"
            yield Finding("path", "bad", shown, "set the same MTU on both hosts and on the switch", known.PLAYBOOKS)


def _equal(name: str, value: Callable[[Links], str], why: str, source: str) -> Callable[..., Iterator[Finding]]:
    """Return a rule that all members must have the same value. Members with an unknown value are ignored."""

    def rule(members: Sequence[Links]) -> Iterator[Finding]:
        found = {member.host: value(member) for member in members}
        if len({text for text in found.values() if text}) > 1:
            shown = ", ".join(f"{host} {text}" for host, text in found.items() if text)
            yield Finding(name, "warning", f"{shown}: {why}", source=source)

    return rule


def _mtu(members: Sequence[Links]) -> Iterator[Finding]:
    found = {member.host: sorted({link.mtu for link in member.in_use if link.mtu}) for member in members}
    if len({tuple(mtus) for mtus in found.values() if mtus}) > 1:
        shown = ", ".join(f"{host} {'/'.join(map(str, mtus))}" for host, mtus in found.items() if mtus)
        fix = "set the same MTU on every host (in /etc/netplan)"
        yield Finding("MTU", "bad", f"{shown}: large transfers fail", fix, "tonyd2wild, 2x DGX Spark, issue 38")


def _subnets(members: Sequence[Links]) -> Iterator[Finding]:
    """Check that each half of a port is in the same subnet as its peers, but not as the other half."""
    for member in members:
        nets = [str(IPv4Interface(link.addresses[0]).network) for link in member.in_use if link.addresses]
        if len(set(nets)) < len(nets):
            shown = f"{member.host}: both halves are in {nets[0]}: traffic of one may leave by the other"
            yield Finding("subnets", "bad", shown, "give each a subnet of its own", known.PLAYBOOKS)
    firsts = {
        member.host: member.in_use[0].addresses[0] for member in members if member.in_use and member.in_use[0].addresses
    }
    if len({IPv4Interface(address).network for address in firsts.values()}) > 1:
        shown = ", ".join(f"{host} {address}" for host, address in firsts.items())
        yield Finding("subnets", "bad", f"{shown}: not in one subnet", "", known.PLAYBOOKS)


def _clocks(members: Sequence[Links]) -> Iterator[Finding]:
    """Compare each clock with the first member's, both relative to the laptop."""
    timed = [(member.host, *member.ahead_s) for member in members if member.ahead_s is not None]
    for host, least_s, most_s in timed[1:]:
        name, first_least_s, first_most_s = timed[0]
        if apart := clocks_apart((least_s - first_most_s, most_s - first_least_s), name):
            shown = f"that of {host} is {apart}: their logs and histories do not match"
            yield Finding("clock", "warning", shown, "timedatectl timesync-status", known.CLOCK.source)


_BETWEEN: tuple[Callable[[Sequence[Links]], Iterator[Finding]], ...] = (
    _mtu,
    _subnets,
    _clocks,
    _equal("kernel", lambda links: links.kernel, "members should run the same", known.WIKI),
    _equal("NVIDIA driver", lambda links: links.driver, "members should have the same", known.PLAYBOOKS),
    _equal(
        "NIC firmware",
        lambda links: "/".join(sorted({link.firmware for link in links.in_use if link.firmware})),
        "an update of one host only is a known cause of slow links",
        known.PLAYBOOKS,
    ),
    _equal(
        "rate",
        lambda links: "/".join(sorted({f"{link.rate_gbps:.0f} Gb/s" for link in links.in_use if link.rate_gbps})),
        "the slowest link decides",
        known.PLAYBOOKS,
    ),
)


# The bandwidth measurement of `cluster.check --bandwidth`.
#
# It measures between each member and the next, over both halves of the port at once.

#: perftest's default port; each additional half uses the next one
FIRST_PORT = 18515
SECONDS = 4
#: least acceptable share of the nominal rate; the halves of a good port reached 92.6 and 97.3 of 200 Gb/s (NVIDIA
#: dgx-spark-playbooks, performance guide)
GOOD_SHARE = 0.875
#: below this rate the card is degraded: throttled by firmware or power supply it reaches 13 Gb/s, though its link reports 200
DEGRADED_GBPS = 25.0
SOURCE = "NVIDIA dgx-spark-playbooks; reports of degraded cards in NVIDIA's developer forum"
DEGRADED_FIX = "power the host off and unplug it for a minute, then update the firmware of the card"


def bandwidth_findings(selection: Selection, members: Sequence[Links]) -> list[tuple[str, Finding]]:
    """Measure the bandwidth between each member and the next, and return the findings with the names of both hosts."""
    if sys.stderr.isatty():
        print(f"Measuring {count(len(members) - 1, 'link')}, {SECONDS} s each.", file=sys.stderr)
    selection.fleet.connect()
    try:
        return [(f"{links.host}, {other.host}", _pair(selection, links, other)) for links, other in pairwise(members)]
    finally:
        selection.fleet.close()


def judged(rates: Sequence[dict[str, Any]], nominal_gbps: float) -> Finding:
    """Return the finding for a link, given the rates of its halves.

    Args:
        nominal_gbps: rate of the slower end, in Gbit/s; 0 if unknown.
    """
    why = {rate["error"]: [row["adapter"] for row in rates if row["error"] == rate["error"]] for rate in rates}
    errors = [f"{', '.join(adapters)}: {error}" for error, adapters in why.items() if error]
    if errors:
        fix = "sudo apt install perftest, on both hosts" if any("not installed" in error for error in errors) else ""
        return Finding("bandwidth", "unknown", "; ".join(errors), fix)
    total = sum(rate["gbps"] for rate in rates)
    halves = " + ".join(f"{rate['gbps']:.1f}" for rate in rates)
    shown = f"{halves} = {total:.0f} Gb/s" if len(rates) > 1 else f"{total:.0f} Gb/s"
    if total < DEGRADED_GBPS:
        return Finding("bandwidth", "bad", f"{shown}: the card is degraded", DEGRADED_FIX, SOURCE)
    if nominal_gbps and total < GOOD_SHARE * nominal_gbps:
        return Finding("bandwidth", "warning", f"{shown} of {nominal_gbps:.0f}", source=SOURCE)
    return Finding("bandwidth", "ok", f"{shown} of {nominal_gbps:.0f}" if nominal_gbps else shown)


def _pair(selection: Selection, links: Links, other: Links) -> Finding:
    """Measure the bandwidth from the first member to the second."""
    halves = list(zip(_halves(links), _halves(other), strict=False))
    if not halves:
        return Finding("bandwidth", "unknown", "no half of the port is up with an address on both hosts")
    ends = {
        links.host: ("send", [_end(mine, its, n) for n, (mine, its) in enumerate(halves)]),
        other.host: ("listen", [_end(its, mine, n) for n, (mine, its) in enumerate(halves)]),
    }
    rates: dict[str, list[dict[str, Any]]] = {}

    def measure(member: Member) -> None:
        role, mine = ends[member.host.name]
        found = ask_module(selection.fleet, member, "link_rate", {"role": role, "ends": mine, "seconds": SECONDS})
        rates[role] = found["rates"]

    selection.fleet.each([member for member in selection.fleet.members if member.host.name in ends], measure)
    errors = [f"{name}: {error.message}" for name, error in selection.fleet.errors().items() if name in ends]
    if errors:
        return Finding("bandwidth", "unknown", "; ".join(errors))
    receivers = {row["adapter"]: row for row in rates.get("listen", [])}
    sent = [
        _explained(row, receivers.get(its.adapter))
        for row, (_, its) in zip(rates.get("send", []), halves, strict=False)
    ]
    return judged(sent, min(_nominal(links), _nominal(other)))


def _halves(links: Links) -> list[Link]:
    return [link for link in links.in_use if link.active and link.addresses]


def _end(mine: Link, its: Link, number: int) -> dict[str, Any]:
    own, peer = (link.addresses[0].partition("/")[0] for link in (mine, its))
    return {"adapter": mine.adapter, "address": own, "peer": peer, "port": FIRST_PORT + number}


def _explained(sent: dict[str, Any], receiver: dict[str, Any] | None) -> dict[str, Any]:
    """Add the listener's error to the sender's, because only the listener knows why the sender could not connect."""
    why = receiver["error"] if receiver and sent["gbps"] is None else ""
    return {**sent, "error": f"{sent['error']}; {why}"} if why not in ("", sent["error"]) else sent


def _nominal(links: Links) -> float:
    """Return the rate of the port in Gbit/s. Its halves share this rate, and each reports the whole of it."""
    return max((link.rate_gbps for link in links.in_use), default=0.0)

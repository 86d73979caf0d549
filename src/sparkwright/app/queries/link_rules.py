"""Check the fast links between hosts: whether they suit a cluster, and whether host files describe them correctly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from itertools import pairwise
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.queries.host_requests import query_module
from sparkwright.doctor import fabric, known_facts
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.host import Finding, Verdict
from sparkwright.fleet.member import Member
from sparkwright.project.inventory.groups import Fabric
from sparkwright.protocol.cluster import describe_clock_offset
from sparkwright.visible import format_count

#: perftest's default port; the second half of a link (see `propose_fabric`) uses the next one
FIRST_PERFTEST_PORT = 18515
MEASUREMENT_DURATION_S = 4
#: minimum share of the nominal rate; a lower rate is reported as a warning. The halves of a good port reached 92.6 and 97.3 of
#: 200 Gb/s (NVIDIA dgx-spark-playbooks, performance guide)
MIN_LINK_RATE_SHARE = 0.875
#: below this rate the card is degraded; one that its firmware or power supply throttled reached 13 of 200 Gb/s
MAX_DEGRADED_GBPS = 25.0
BANDWIDTH_SOURCE = "NVIDIA dgx-spark-playbooks; reports of degraded cards in NVIDIA's developer forum"
DEGRADED_FIX = "power the host off and unplug it for a minute, then update the firmware of the card"


@dataclass(frozen=True)
class HostLinks:
    """A host's links, as it reports them."""

    host: str
    links: tuple[Link, ...]
    findings: tuple[Finding, ...] = ()
    #: tested paths to the other hosts, in the shape `host_requests.LINK_PATH_SHAPE`
    paths: tuple[Mapping[str, Any], ...] = ()
    kernel: str = ""
    driver: str = ""
    #: the `fabric` of the host file; None if it has none
    declared_fabric: Fabric | None = None
    #: lower and upper bound for how far the host's clock is ahead of the laptop's, in seconds; None if unknown
    clock_ahead_bounds_s: tuple[float, float] | None = None

    @property
    def used_fabric(self) -> Fabric | None:
        """The fabric in the host file, or else the proposed one."""
        return self.declared_fabric or propose_fabric(self.links)

    @property
    def links_in_use(self) -> list[Link]:
        """The links of the used fabric, in the order of its interfaces."""
        links_by_interface = {link.interface: link for link in self.links if link.interface}
        names = self.used_fabric.interfaces if self.used_fabric else ()
        return [links_by_interface[name] for name in names if name in links_by_interface]


def propose_fabric(links: Sequence[Link]) -> Fabric | None:
    """Return the fabric to add to a host file: the port that has an address and the most active halves.

    A port appears as two RDMA adapters, its halves. Returns None if no port has an address.
    """
    ports = fabric.group_by_port([link for link in links if link.active and link.interface]).values()
    usable_ports = [group for group in ports if group[0].addresses]
    best_port = max(usable_ports, key=len, default=None)
    if best_port is None:
        return None
    proposal = Fabric(tuple(link.interface for link in best_port), best_port[0].addresses[0].partition("/")[0])
    adapters = tuple(link.adapter for link in best_port)
    return proposal if proposal.hcas == adapters else Fabric(proposal.interfaces, proposal.address, adapters)


def check_links(members: Sequence[HostLinks]) -> list[tuple[str, Finding]]:
    """Return the problems, each with the name of its host, which is empty for a problem between hosts."""
    problems = [(member.host, finding) for member in members for finding in member.findings if finding.verdict != "ok"]
    problems += [
        (member.host, finding) for member in members for finding in (*_check_fabric(member), *_check_paths(member))
    ]
    problems += [("", finding) for rule in _CLUSTER_RULES for finding in rule(members)]
    return problems


def _check_fabric(member: HostLinks) -> Iterator[Finding]:
    """Check that the fabric in the host file matches the links and that they are active."""
    used_fabric = member.used_fabric
    if used_fabric is None:
        yield Finding("fabric", "bad", "no active link has an IPv4 address", source=known_facts.PLAYBOOKS)
        return
    links_by_interface = {link.interface: link for link in member.links if link.interface}
    for name in used_fabric.interfaces:
        if name not in links_by_interface:
            message = f"no RDMA adapter has the interface {name}; interfaces: {', '.join(links_by_interface) or 'none'}"
            yield Finding("fabric", "bad", message, f"correct `fabric.interfaces` in hosts/{member.host}.yml")
        elif not links_by_interface[name].active and (
            name == used_fabric.interfaces[0] or not fabric.has_active_twin(name, member.links)
        ):
            yield Finding("fabric", "bad", f"{name} is down", f"sudo ip link set {name} up")
    first_link = links_by_interface.get(used_fabric.interfaces[0])
    if first_link is not None and used_fabric.address not in [
        address.partition("/")[0] for address in first_link.addresses
    ]:
        addresses_text = ", ".join(first_link.addresses) or "no IPv4 address"
        message = f"{first_link.interface} has {addresses_text}, not {used_fabric.address}"
        yield Finding("fabric", "bad", message, f"correct `fabric.address` in hosts/{member.host}.yml")


def _check_paths(member: HostLinks) -> Iterator[Finding]:
    used_fabric = member.used_fabric
    for path in member.paths:
        peer, interface = path["peer"], path["interface"]
        if not interface:
            yield Finding("path", "unknown", f"no route to {peer} could be read", "ip route get " + peer)
        elif used_fabric is not None and interface not in used_fabric.interfaces:
            message = f"{peer} is reached over {interface}, not over the fabric"
            yield Finding("path", "bad", message, f"ip route get {peer}", known_facts.PLAYBOOKS)
        elif path["reached"] is None:
            yield Finding("path", "unknown", f"{peer}: ping could not be run")
        elif not path["reached"]:
            message = f"a frame of {path['mtu']} bytes does not reach {peer} over {interface}"
            fix = "set the same MTU on both hosts and on the switch"
            yield Finding("path", "bad", message, fix, known_facts.PLAYBOOKS)


def _same_value_rule(
    name: str,
    get_value: Callable[[HostLinks], str],
    reason: str,
    source: str,
    *,
    verdict: Verdict = "warning",
    fix: str = "",
) -> Callable[..., Iterator[Finding]]:
    """Return a rule for a value that all members should share. Empty values are unknown and ignored."""

    def rule(members: Sequence[HostLinks]) -> Iterator[Finding]:
        values = {member.host: get_value(member) for member in members if get_value(member)}
        if len(set(values.values())) > 1:
            listing = ", ".join(f"{host} {value}" for host, value in values.items())
            yield Finding(name, verdict, f"{listing}: {reason}", fix, source)

    return rule


def _check_subnets(members: Sequence[HostLinks]) -> Iterator[Finding]:
    """Check that the halves of a port are in different subnets, and that the first halves of all members are in the same one."""
    for member in members:
        subnets = [str(IPv4Interface(link.addresses[0]).network) for link in member.links_in_use if link.addresses]
        if len(set(subnets)) < len(subnets):
            message = f"{member.host}: both halves are in {subnets[0]}, so traffic of one may use the other"
            yield Finding("subnets", "bad", message, "put each half into a different subnet", known_facts.PLAYBOOKS)
    first_addresses = {
        member.host: member.links_in_use[0].addresses[0]
        for member in members
        if member.links_in_use and member.links_in_use[0].addresses
    }
    if len({IPv4Interface(address).network for address in first_addresses.values()}) > 1:
        message = ", ".join(f"{host} {address}" for host, address in first_addresses.items())
        yield Finding("subnets", "bad", f"{message}: not in one subnet", "", known_facts.PLAYBOOKS)


def _check_clocks(members: Sequence[HostLinks]) -> Iterator[Finding]:
    """Compare each clock with the first member's, both relative to the laptop."""
    clock_bounds = [
        (member.host, *member.clock_ahead_bounds_s) for member in members if member.clock_ahead_bounds_s is not None
    ]
    for host, min_s, max_s in clock_bounds[1:]:
        first_host, first_min_s, first_max_s = clock_bounds[0]
        if offset := describe_clock_offset((min_s - first_max_s, max_s - first_min_s), first_host):
            message = f"the clock of {host} is {offset}: timestamps in their logs and histories do not line up"
            yield Finding("clock", "warning", message, "timedatectl timesync-status", known_facts.CLOCK.source)


_CLUSTER_RULES: tuple[Callable[[Sequence[HostLinks]], Iterator[Finding]], ...] = (
    _same_value_rule(
        "MTU",
        lambda member: "/".join(map(str, sorted({link.mtu for link in member.links_in_use if link.mtu}))),
        "large transfers fail",
        "tonyd2wild, 2x DGX Spark, issue 38",
        verdict="bad",
        fix="set the same MTU on every host (in /etc/netplan)",
    ),
    _check_subnets,
    _check_clocks,
    _same_value_rule(
        "kernel", lambda member: member.kernel, "all members should run the same kernel", known_facts.WIKI
    ),
    _same_value_rule(
        "NVIDIA driver", lambda member: member.driver, "all members should have the same driver", known_facts.PLAYBOOKS
    ),
    _same_value_rule(
        "NIC firmware",
        lambda member: "/".join(sorted({link.firmware for link in member.links_in_use if link.firmware})),
        "updating only one host is a known cause of slow links",
        known_facts.PLAYBOOKS,
    ),
    _same_value_rule(
        "rate",
        lambda member: "/".join(
            sorted({f"{link.rate_gbps:.0f} Gb/s" for link in member.links_in_use if link.rate_gbps})
        ),
        "the slowest link limits the whole cluster",
        known_facts.PLAYBOOKS,
    ),
)


def measure_bandwidth(selection: Selection, members: Sequence[HostLinks]) -> list[tuple[str, Finding]]:
    """Measure the bandwidth between each member and the next, over both halves of the port at once.

    Returns the findings, each with both hosts' names.
    """
    if sys.stderr.isatty():
        print(f"Measuring {format_count(len(members) - 1, 'link')}, {MEASUREMENT_DURATION_S} s each.", file=sys.stderr)
    selection.fleet.connect()
    try:
        return [
            (f"{sender.host}, {listener.host}", _measure_pair(selection, sender, listener))
            for sender, listener in pairwise(members)
        ]
    finally:
        selection.fleet.close()


def evaluate_rates(rates: Sequence[dict[str, Any]], nominal_gbps: float) -> Finding:
    """Evaluate the measured rates of a link's halves. nominal_gbps: rate of the slower end in Gbit/s; 0 if unknown."""
    adapters_by_error = {
        rate["error"]: [row["adapter"] for row in rates if row["error"] == rate["error"]] for rate in rates
    }
    errors = [f"{', '.join(adapters)}: {error}" for error, adapters in adapters_by_error.items() if error]
    if errors:
        fix = "sudo apt install perftest, on both hosts" if any("not installed" in error for error in errors) else ""
        return Finding("bandwidth", "unknown", "; ".join(errors), fix)
    total_gbps = sum(rate["gbps"] for rate in rates)
    sum_text = " + ".join(f"{rate['gbps']:.1f}" for rate in rates)
    figures = f"{sum_text} = {total_gbps:.0f} Gb/s" if len(rates) > 1 else f"{total_gbps:.0f} Gb/s"
    if total_gbps < MAX_DEGRADED_GBPS:
        return Finding("bandwidth", "bad", f"{figures}: the card is degraded", DEGRADED_FIX, BANDWIDTH_SOURCE)
    if nominal_gbps and total_gbps < MIN_LINK_RATE_SHARE * nominal_gbps:
        return Finding("bandwidth", "warning", f"{figures} of {nominal_gbps:.0f}", source=BANDWIDTH_SOURCE)
    return Finding("bandwidth", "ok", f"{figures} of {nominal_gbps:.0f}" if nominal_gbps else figures)


def _measure_pair(selection: Selection, sender: HostLinks, listener: HostLinks) -> Finding:
    """Measure the bandwidth from one host to another."""
    halves = list(zip(_usable_halves(sender), _usable_halves(listener), strict=False))
    if not halves:
        return Finding("bandwidth", "unknown", "no half of the port is up with an address on both hosts")
    endpoints_by_host = {
        sender.host: ("send", [_endpoint_arguments(local, peer, n) for n, (local, peer) in enumerate(halves)]),
        listener.host: ("listen", [_endpoint_arguments(peer, local, n) for n, (local, peer) in enumerate(halves)]),
    }
    rates: dict[str, list[dict[str, Any]]] = {}

    def measure(member: Member) -> None:
        role, endpoints = endpoints_by_host[member.host.name]
        args = {"role": role, "ends": endpoints, "seconds": MEASUREMENT_DURATION_S}
        rates[role] = query_module(selection.fleet, member, "link_rate", args)["rates"]

    selection.fleet.run_parallel(
        [member for member in selection.fleet.members if member.host.name in endpoints_by_host], measure
    )
    errors = [
        f"{name}: {error.message}" for name, error in selection.fleet.errors().items() if name in endpoints_by_host
    ]
    if errors:
        return Finding("bandwidth", "unknown", "; ".join(errors))
    listener_rates = {rate["adapter"]: rate for rate in rates.get("listen", [])}
    sender_rates = [
        _merge_errors(rate, listener_rates.get(peer.adapter))
        for rate, (_, peer) in zip(rates.get("send", []), halves, strict=False)
    ]
    return evaluate_rates(sender_rates, min(_nominal_gbps(sender), _nominal_gbps(listener)))


def _usable_halves(member: HostLinks) -> list[Link]:
    return [link for link in member.links_in_use if link.active and link.addresses]


def _endpoint_arguments(local: Link, peer: Link, number: int) -> dict[str, Any]:
    address, peer_address = (link.addresses[0].partition("/")[0] for link in (local, peer))
    return {"adapter": local.adapter, "address": address, "peer": peer_address, "port": FIRST_PERFTEST_PORT + number}


def _merge_errors(sender: dict[str, Any], listener: dict[str, Any] | None) -> dict[str, Any]:
    """Add the listener's error to the sender's, because it may explain why the sender could not connect."""
    listener_error = listener["error"] if listener and sender["gbps"] is None else ""
    if listener_error in ("", sender["error"]):
        return sender
    return {**sender, "error": f"{sender['error']}; {listener_error}"}


def _nominal_gbps(member: HostLinks) -> float:
    """Return the rate of the port in Gbit/s. Its halves share this rate, and each of them reports it in full."""
    return max((link.rate_gbps for link in member.links_in_use), default=0.0)

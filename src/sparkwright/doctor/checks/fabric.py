"""The fast links to other Sparks: rates, both halves of a port, addresses; and the kernel's memory for RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.doctor import fabric, known
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.findings import Finding, Verdict
from sparkwright.doctor.host import Host
from sparkwright.units import GIB

NAME = "fabric"
MEMORY = "RDMA memory"


def check(host: Host) -> Iterator[Finding]:
    found = fabric.links(host)
    up = {port: links for port, links in fabric.ports(found).items() if any(link.active for link in links)}
    if not up:
        verdict: Verdict = "ok" if found else "unknown"  # a Spark has adapters, with and without a cable
        shown = "no link is up" if found else "no RDMA adapter seen"
        yield Finding(NAME, verdict, f"{shown}: needed only for a model over several hosts", source=known.PLAYBOOKS)
        yield from (
            finding for finding in memory(host) if finding.verdict == "bad"
        )  # the driver's allocations fail, too
        return
    for port, links in up.items():
        problems = list(problems_of(links))
        for verdict, evidence, fix, source in problems:
            yield Finding(f"{NAME} {port}", verdict, evidence, fix, source)
        if not problems:
            yield Finding(f"{NAME} {port}", "ok", _shown(links), source=known.PLAYBOOKS)
    yield from memory(host)


def problems_of(links: list[Link]) -> Iterator[tuple[Verdict, str, str, str]]:
    """Yield the problems of one port: verdict, evidence, fix, source."""
    up = [link for link in links if link.active]
    down = [link.adapter for link in links if not link.active]
    if down:
        about = known.BOTH_TWINS
        yield "warning", f"{', '.join(down)} is down, its twin is up: {about.says}", _bring_up(links), about.source
    versions = {link.adapter: link.firmware for link in links if link.firmware}
    if len(set(versions.values())) > 1:
        about = known.NIC_FIRMWARE
        shown = ", ".join(f"{name} has firmware {version}" for name, version in versions.items())
        yield "warning", f"{shown}: {about.says}", "fwupdmgr get-updates", about.source
    for link in up:
        if 0 < link.rate_gbps < known.LINK_GBPS:
            about = known.SLOW_LINK
            yield "warning", f"{link.adapter}: {link.rate_gbps:.0f} Gb/s: {about.says}", "", about.source
        if 0 < link.mtu < known.JUMBO_MTU:
            about = known.JUMBO
            fix = f"sudo ip link set {link.interface} mtu {known.JUMBO_MTU} (and in /etc/netplan, on every host)"
            yield "warning", f"{link.interface}: MTU {link.mtu}: {about.says}", fix, about.source
        if link.pci.endswith((" x1", " x2")):
            about = known.PCI_WIDTH
            yield "warning", f"{link.adapter}: {link.pci}: {about.says}", "fwupdmgr get-updates", about.source
        bare = [found for found in (address.partition("/")[0] for address in link.addresses) if found not in link.gids]
        if not link.addresses:
            about = known.TWIN_ADDRESSES
            yield "warning", f"{link.interface} has no IPv4 address: {about.says}", "", about.source
        elif bare:
            about = known.ROCE_GID
            yield "bad", f"{link.adapter} has no RoCE v2 GID for {bare[0]}: {about.says}", "sudo reboot", about.source


def _bring_up(links: list[Link]) -> str:
    name = next((link.interface for link in links if not link.active and link.interface), "")
    return f"sudo ip link set {name} up" if name else ""


def _shown(links: list[Link]) -> str:
    names = " and ".join(link.interface or link.adapter for link in links)
    firmware = f", firmware {links[0].firmware}" if links[0].firmware else ""
    return f"{names}: {links[0].rate_gbps:.0f} Gb/s, MTU {links[0].mtu}, {', '.join(links[0].addresses)}{firmware}"


def memory(host: Host) -> Iterator[Finding]:
    """Check for a kernel that keeps its CMA for itself and reports more of it as free than exists."""
    release = (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100]
    memory, about = host.memory() or {}, known.CMA
    if "CmaFree" not in memory or "CmaTotal" not in memory:
        yield Finding(MEMORY, "unknown", "no CmaFree in /proc/meminfo", source=about.source)
        return
    free, total = memory["CmaFree"], memory["CmaTotal"]
    off = "kho=off" in (host.read("/proc/cmdline") or "").split()
    if re.match(r"7\.0\.", release) and free > total + known.CMA_LOST_BYTES and not off:
        shown = f"{release}: CmaFree {free / GIB:.1f} GiB of CmaTotal {total / GIB:.2f} GiB: {about.says}"
        yield Finding(MEMORY, "bad", shown, "add kho=off to the kernel command line and reboot", about.source)
    else:
        yield Finding(MEMORY, "ok", f"{release}: CmaTotal {total / GIB:.2f} GiB", source=about.source)

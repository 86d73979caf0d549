"""Checks of the network: the fast links, name resolution, and the port that the recipe publishes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from sparkwright.doctor import fabric, known
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.host import Finding, Host, Verdict
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers, port_forwarders
from sparkwright.units import GIB

FABRIC_NAME = "fabric"
MEMORY = "RDMA memory"


def check_fabric(host: Host) -> Iterator[Finding]:
    found = fabric.links(host)
    up = {port: links for port, links in fabric.ports(found).items() if any(link.active for link in links)}
    if not up:
        verdict: Verdict = "ok" if found else "unknown"  # a Spark has adapters even if no cable is plugged in
        shown = "no link is up" if found else "no RDMA adapter seen"
        yield Finding(
            FABRIC_NAME, verdict, f"{shown}: needed only for a model over several hosts", source=known.PLAYBOOKS
        )
        yield from (
            finding for finding in memory(host) if finding.verdict == "bad"
        )  # the driver's allocations fail too
        return
    for port, links in up.items():
        problems = list(problems_of(links))
        for verdict, evidence, fix, source in problems:
            yield Finding(f"{FABRIC_NAME} {port}", verdict, evidence, fix, source)
        if not problems:
            yield Finding(f"{FABRIC_NAME} {port}", "ok", _shown(links), source=known.PLAYBOOKS)
    yield from memory(host)


def problems_of(links: list[Link]) -> Iterator[tuple[Verdict, str, str, str]]:
    """Yield the problems of a port as (verdict, evidence, fix, source)."""
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
    """Check for a kernel that reserves its CMA and reports more of it as free than exists."""
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


NAMES_NAME = "names"
COUNTED = re.compile(r"^(.*)-(\d{1,4})$")


def check_names(host: Host) -> Iterator[Finding]:
    own = (host.read("/proc/sys/kernel/hostname") or host.read("/etc/hostname") or "").strip()
    yield _own(host, own)
    yield from _avahi(host, own)
    yield _hub(host)


def _own(host: Host, own: str) -> Finding:
    source = known.OWN_NAME.source
    if not own:
        return Finding(NAMES_NAME, "unknown", "cannot read the hostname", source=source)
    answer = host.output("getent", "hosts", own)
    if answer is None:
        return Finding(NAMES_NAME, "unknown", f"unknown whether {own} resolves", source=source)
    if not answer.ok:
        fix = f"echo 127.0.1.1 {own} | sudo tee -a /etc/hosts"
        evidence = f"{own} does not resolve on the host itself: {known.OWN_NAME.says}"
        return Finding(NAMES_NAME, "warning", evidence, fix, source)
    return Finding(NAMES_NAME, "ok", f"{own} is {' '.join(answer.out.split()[:1])}", source=source)


def _avahi(host: Host, own: str) -> Iterator[Finding]:
    """Check the name that avahi-daemon took, according to its process title: avahi-daemon: running [spark-2.local]."""
    titles = " ".join(word for words in host.processes("avahi-daemon") for word in words)
    found = re.search(r"running \[([^\]]{1,255})\]", titles)
    if not found:
        return
    taken = found[1].removesuffix(".local")
    counted = COUNTED.match(taken)
    if counted and counted[1] == own:
        fix = "sudo sed -i 's/^#\\?allow-interfaces=.*/allow-interfaces=enP7s7/' /etc/avahi/avahi-daemon.conf"
        evidence = f"avahi announces {found[1]} instead of {own}.local: {known.AVAHI.says}"
        yield Finding("avahi", "warning", evidence, f"{fix} && sudo systemctl restart avahi-daemon", known.AVAHI.source)
    else:
        yield Finding("avahi", "ok", f"{found[1]}", source=known.AVAHI.source)


def _hub(host: Host) -> Finding:
    """Check that the name of the hub, or of the proxy to it, can be resolved, unless it is an address."""
    machine = host.context.machine
    proxy = machine.env.get("HTTPS_PROXY") or machine.env.get("https_proxy") or ""
    name = urlsplit(proxy if "://" in proxy else machine.hub_url).hostname or ""
    if not name or re.fullmatch(r"[\d.]+|.*:.*", name):
        return Finding("DNS", "ok", f"{name} is an address")
    answer = host.output("getent", "ahosts", name)
    if answer is None:
        return Finding("DNS", "unknown", f"timed out resolving {name}", "resolvectl status", "getent(1)")
    if not answer.ok:
        return Finding("DNS", "bad", f"cannot resolve {name}", "resolvectl status", "getent(1)")
    return Finding("DNS", "ok", f"{name} is {answer.out.split()[0]}", source="getent(1)")


PORTS_NAME = "port"


def check_ports(host: Host) -> Iterator[Finding]:
    wanted = host.wanted
    if not wanted.port and wanted.recipe:
        yield Finding(PORTS_NAME, "ok", "no port is needed: the head of the cluster answers requests")
        return
    if not wanted.port:
        yield Finding(PORTS_NAME, "unknown", "the host has no recipe, so no port to check")
        return
    try:
        client = host.context.docker()
        holder = containers.who_listens(client, wanted.port)
    except SparkwrightError:
        yield Finding(PORTS_NAME, "unknown", f"unknown what uses port {wanted.port}: no answer from Docker")
        return
    if not holder:
        yield Finding(PORTS_NAME, "ok", f"port {wanted.port} is free")
    elif holder == f"container {wanted.container}":
        yield Finding(PORTS_NAME, "ok", f"port {wanted.port} is used by this server")
    else:
        kind, _, name = holder.partition(" ")
        fix = f"docker stop {name}" if kind == "container" else f"sudo ss -tlnp 'sport = :{wanted.port}'"
        if holder.startswith(port_forwarders.TITLE):
            fix = port_forwarders.COMMAND
        yield Finding(PORTS_NAME, "bad", f"port {wanted.port} is in use by {holder}", fix, "docker run --publish")

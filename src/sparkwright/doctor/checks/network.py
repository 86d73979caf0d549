"""Checks for the network: the fast links, name resolution, and the port that the recipe publishes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from sparkwright.doctor import fabric, known_facts
from sparkwright.doctor.checks.registration import register_check
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.host import Finding, Host, Verdict
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers, port_forwarders
from sparkwright.units import GIB

FABRIC_CHECK = "fabric"
RDMA_MEMORY_CHECK = "RDMA memory"


@register_check(FABRIC_CHECK)
def check_fabric(host: Host) -> Iterator[Finding]:
    adapters = fabric.list_links(host)
    ports = fabric.group_by_port(adapters)
    active_ports = {port: links for port, links in ports.items() if any(link.active for link in links)}
    if not active_ports:
        verdict: Verdict = "ok" if adapters else "unknown"  # a Spark has adapters even if no cable is plugged in
        summary = "no link is up" if adapters else "no RDMA adapter found"
        evidence = f"{summary}: needed only for a model on several hosts"
        yield Finding(FABRIC_CHECK, verdict, evidence, source=known_facts.PLAYBOOKS)
        # the driver's own allocations also fail if the kernel reserves this memory
        yield from (finding for finding in check_rdma_memory(host) if finding.verdict == "bad")
        return
    for port, port_links in active_ports.items():
        problems = list(port_problems(port_links))
        for verdict, evidence, fix, source in problems:
            yield Finding(f"{FABRIC_CHECK} {port}", verdict, evidence, fix, source)
        if not problems:
            yield Finding(f"{FABRIC_CHECK} {port}", "ok", _format_links(port_links), source=known_facts.PLAYBOOKS)
    yield from check_rdma_memory(host)


def port_problems(links: list[Link]) -> Iterator[tuple[Verdict, str, str, str]]:
    """Yield the problems of a port as (verdict, evidence, fix, source)."""
    down_adapters = [link.adapter for link in links if not link.active]
    if down_adapters:
        fact = known_facts.BOTH_TWINS
        interface = next((link.interface for link in links if not link.active and link.interface), "")
        fix = f"sudo ip link set {interface} up" if interface else ""
        yield "warning", f"{', '.join(down_adapters)} is down, but the other half is up: {fact.text}", fix, fact.source
    versions = {link.adapter: link.firmware for link in links if link.firmware}
    if len(set(versions.values())) > 1:
        fact = known_facts.NIC_FIRMWARE
        versions_text = ", ".join(f"{name} has firmware {version}" for name, version in versions.items())
        yield "warning", f"{versions_text}: {fact.text}", "fwupdmgr get-updates", fact.source
    for link in filter(lambda link: link.active, links):
        if 0 < link.rate_gbps < known_facts.LINK_GBPS:
            fact = known_facts.SLOW_LINK
            yield "warning", f"{link.adapter}: {link.rate_gbps:.0f} Gb/s: {fact.text}", "", fact.source
        if 0 < link.mtu < known_facts.JUMBO_MTU:
            fact = known_facts.JUMBO
            fix = f"sudo ip link set {link.interface} mtu {known_facts.JUMBO_MTU} (and in /etc/netplan, on every host)"
            yield "warning", f"{link.interface}: MTU {link.mtu}: {fact.text}", fix, fact.source
        if link.pci.endswith((" x1", " x2")):
            fact = known_facts.PCI_WIDTH
            yield "warning", f"{link.adapter}: {link.pci}: {fact.text}", "fwupdmgr get-updates", fact.source
        addresses = (address.partition("/")[0] for address in link.addresses)
        addresses_without_gid = [address for address in addresses if address not in link.gids]
        if not link.addresses:
            fact = known_facts.TWIN_ADDRESSES
            yield "warning", f"{link.interface} has no IPv4 address: {fact.text}", "", fact.source
        elif addresses_without_gid:
            fact = known_facts.ROCE_GID
            evidence = f"{link.adapter} has no RoCE v2 GID for {addresses_without_gid[0]}: {fact.text}"
            yield "bad", evidence, "sudo reboot", fact.source


def _format_links(links: list[Link]) -> str:
    names = " and ".join(link.interface or link.adapter for link in links)
    firmware = f", firmware {links[0].firmware}" if links[0].firmware else ""
    return f"{names}: {links[0].rate_gbps:.0f} Gb/s, MTU {links[0].mtu}, {', '.join(links[0].addresses)}{firmware}"


def check_rdma_memory(host: Host) -> Iterator[Finding]:
    """Check for a kernel that reserves the CMA (contiguous memory) and reports more of it as free than exists."""
    release = (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100]
    meminfo, fact = host.memory() or {}, known_facts.CMA
    if "CmaFree" not in meminfo or "CmaTotal" not in meminfo:
        yield Finding(RDMA_MEMORY_CHECK, "unknown", "no CmaFree in /proc/meminfo", source=fact.source)
        return
    free_bytes, total_bytes = meminfo["CmaFree"], meminfo["CmaTotal"]
    is_kho_off = "kho=off" in (host.read("/proc/cmdline") or "").split()
    if re.match(r"7\.0\.", release) and free_bytes > total_bytes + known_facts.MIN_EXCESS_CMA_BYTES and not is_kho_off:
        evidence = f"{release}: CmaFree {free_bytes / GIB:.1f} GiB of CmaTotal {total_bytes / GIB:.2f} GiB: {fact.text}"
        fix = "add kho=off to the kernel command line and reboot"
        yield Finding(RDMA_MEMORY_CHECK, "bad", evidence, fix, fact.source)
    else:
        yield Finding(RDMA_MEMORY_CHECK, "ok", f"{release}: CmaTotal {total_bytes / GIB:.2f} GiB", source=fact.source)


NAMES_CHECK = "names"
NUMBERED_NAME_PATTERN = re.compile(r"^(.*)-(\d{1,4})$")


@register_check(NAMES_CHECK)
def check_names(host: Host) -> Iterator[Finding]:
    hostname = (host.read("/proc/sys/kernel/hostname") or host.read("/etc/hostname") or "").strip()
    yield _own_name_finding(host, hostname)
    yield from _check_avahi(host, hostname)
    yield _hub_name_finding(host)


def _own_name_finding(host: Host, hostname: str) -> Finding:
    source = known_facts.OWN_NAME.source
    if not hostname:
        return Finding(NAMES_CHECK, "unknown", "cannot read the hostname", source=source)
    result = host.run_program("getent", "hosts", hostname)
    if result is None:
        return Finding(NAMES_CHECK, "unknown", f"unknown whether {hostname} resolves", source=source)
    if not result.ok:
        fix = f"echo 127.0.1.1 {hostname} | sudo tee -a /etc/hosts"
        evidence = f"{hostname} does not resolve on the host itself: {known_facts.OWN_NAME.text}"
        return Finding(NAMES_CHECK, "warning", evidence, fix, source)
    return Finding(NAMES_CHECK, "ok", f"{hostname} is {' '.join(result.out.split()[:1])}", source=source)


def _check_avahi(host: Host, hostname: str) -> Iterator[Finding]:
    """Check the name that avahi-daemon announces, from its process title: avahi-daemon: running [spark-2.local]."""
    titles = " ".join(word for words in host.processes("avahi-daemon") for word in words)
    match = re.search(r"running \[([^\]]{1,255})\]", titles)
    if not match:
        return
    announced_name = match[1].removesuffix(".local")
    numbered_match = NUMBERED_NAME_PATTERN.match(announced_name)
    if numbered_match and numbered_match[1] == hostname:
        edit_command = "sudo sed -i 's/^#\\?allow-interfaces=.*/allow-interfaces=enP7s7/' /etc/avahi/avahi-daemon.conf"
        fix = f"{edit_command} && sudo systemctl restart avahi-daemon"
        evidence = f"avahi announces {match[1]} instead of {hostname}.local: {known_facts.AVAHI.text}"
        yield Finding("avahi", "warning", evidence, fix, known_facts.AVAHI.source)
    else:
        yield Finding("avahi", "ok", match[1], source=known_facts.AVAHI.source)


def _hub_name_finding(host: Host) -> Finding:
    """Check that the name of the hub, or of the proxy to it, can be resolved."""
    machine = host.context.machine
    proxy = machine.env.get("HTTPS_PROXY") or machine.env.get("https_proxy") or ""
    name = urlsplit(proxy if "://" in proxy else machine.hub_url).hostname or ""
    if not name or re.fullmatch(r"[\d.]+|.*:.*", name):
        return Finding("DNS", "ok", f"{name} is an address")
    result = host.run_program("getent", "ahosts", name)
    if result is None:
        return Finding("DNS", "unknown", f"timed out resolving {name}", "resolvectl status", "getent(1)")
    if not result.ok:
        return Finding("DNS", "bad", f"cannot resolve {name}", "resolvectl status", "getent(1)")
    return Finding("DNS", "ok", f"{name} is {result.out.split()[0]}", source="getent(1)")


PORTS_CHECK = "port"


@register_check(PORTS_CHECK, per_server=True)
def check_ports(host: Host) -> Iterator[Finding]:
    server = host.server
    if not server.port and server.recipe:
        yield Finding(PORTS_CHECK, "ok", "a worker needs no port: the head of the cluster answers requests")
        return
    if not server.port:
        yield Finding(PORTS_CHECK, "unknown", "the host has no recipe, so there is no port to check")
        return
    try:
        client = host.context.docker()
        holder = containers.describe_port_holder(client, server.port)
    except SparkwrightError:
        yield Finding(PORTS_CHECK, "unknown", f"cannot tell what uses port {server.port}: no answer from Docker")
        return
    if not holder:
        yield Finding(PORTS_CHECK, "ok", f"port {server.port} is free")
    elif holder == f"container {server.container}":
        yield Finding(PORTS_CHECK, "ok", f"port {server.port} is used by this server")
    else:
        kind, _, name = holder.partition(" ")
        fix = f"docker stop {name}" if kind == "container" else f"sudo ss -tlnp 'sport = :{server.port}'"
        if holder.startswith(port_forwarders.TITLE):
            fix = port_forwarders.RESTART_COMMAND
        yield Finding(PORTS_CHECK, "bad", f"port {server.port} is in use by {holder}", fix, "docker run --publish")

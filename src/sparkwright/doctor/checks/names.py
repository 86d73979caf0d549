"""Names: the host's own, its name in avahi, and the resolution of outside names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host

NAME = "names"
COUNTED = re.compile(r"^(.*)-(\d{1,4})$")


def check(host: Host) -> Iterator[Finding]:
    own = (host.read("/proc/sys/kernel/hostname") or host.read("/etc/hostname") or "").strip()
    yield _own(host, own)
    yield from _avahi(host, own)
    yield _hub(host)


def _own(host: Host, own: str) -> Finding:
    source = known.OWN_NAME.source
    if not own:
        return Finding(NAME, "unknown", "cannot read the hostname", source=source)
    answer = host.output("getent", "hosts", own)
    if answer is None:
        return Finding(NAME, "unknown", f"unknown whether {own} resolves", source=source)
    if not answer.ok:
        fix = f"echo 127.0.1.1 {own} | sudo tee -a /etc/hosts"
        evidence = f"{own} does not resolve on the host itself: {known.OWN_NAME.says}"
        return Finding(NAME, "warning", evidence, fix, source)
    return Finding(NAME, "ok", f"{own} is {' '.join(answer.out.split()[:1])}", source=source)


def _avahi(host: Host, own: str) -> Iterator[Finding]:
    """Check the name that avahi-daemon took, from its own title: avahi-daemon: running [spark-2.local]."""
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
    """Check that the hub's name can be resolved, or that of the proxy on the way to it; an address needs no resolution."""
    machine = host.context.machine
    proxy = machine.env.get("HTTPS_PROXY") or machine.env.get("https_proxy") or ""
    name = urlsplit(proxy if "://" in proxy else machine.hub_url).hostname or ""
    if not name or re.fullmatch(r"[\d.]+|.*:.*", name):
        return Finding("DNS", "ok", f"{name} is an address already")
    answer = host.output("getent", "ahosts", name)
    if answer is None:
        return Finding("DNS", "unknown", f"timed out resolving {name}", "resolvectl status", "getent(1)")
    if not answer.ok:
        return Finding("DNS", "bad", f"cannot resolve {name}", "resolvectl status", "getent(1)")
    return Finding("DNS", "ok", f"{name} is {answer.out.split()[0]}", source="getent(1)")

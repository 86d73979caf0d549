"""The kernel: known problems of it, and a newer one that waits for a reboot. It is reported, never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host

NAME = "kernel"


def check(host: Host) -> Iterator[Finding]:
    release = (host.read("/proc/sys/kernel/osrelease") or "").strip()
    found = re.match(r"\d+\.\d+", release)
    about = known.KERNELS.get(found[0]) if found else None
    if about is None:
        shown = release or "cannot read the kernel release"
        yield Finding(NAME, "unknown", f"{shown}: not a known kernel of DGX OS 7", source=known.WIKI)
    elif about.says and (links := _fast_links(host)):
        evidence = f"{release}: {about.says}, and {', '.join(links)} is up"
        yield Finding(NAME, "warning", evidence, "ib_write_bw (between two Sparks) tells", about.source)
    else:
        yield Finding(NAME, "ok", release, source=about.source)
    if host.there("/run/reboot-required") or host.there("/var/run/reboot-required"):
        waiting = ", ".join((host.read("/run/reboot-required.pkgs") or "").split()) or "an update"
        yield Finding("reboot", "warning", f"reboot required: {waiting}", "sudo reboot", "update-notifier")


def _fast_links(host: Host) -> list[str]:
    """Return the ConnectX ports that are up."""
    devices = host.names_in("/sys/class/infiniband")
    state = "/sys/class/infiniband/{}/ports/1/state"
    return [name for name in devices if "ACTIVE" in (host.read(state.format(name)) or "")]

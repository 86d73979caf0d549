"""DGX OS: its release, its last update, and a check that all of the memory is there."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import GB10, Host, numbers
from sparkwright.units import gib

NAME = "DGX OS"
DASHBOARD = "Update it in the DGX Dashboard (http://localhost:11000 on the host)."


def check(host: Host) -> Iterator[Finding]:
    release = host.assignments("/etc/dgx-release")
    gpu = host.gpu()
    if not release:
        system = host.assignments("/etc/os-release").get("PRETTY_NAME", "an unknown system")
        if gpu and GB10 in gpu[0]:
            evidence = f"{system} without /etc/dgx-release: not the factory system"
            yield Finding(NAME, "warning", evidence, source=known.NVCHECKUP)
        else:
            yield Finding(NAME, "unknown", f"{system}, no GB10 found: is this a DGX Spark?")
        return
    build, update = release.get("DGX_SWBUILD_VERSION", ""), release.get("DGX_OTA_VERSION", "")
    yield _release(update or build, f"DGX OS {build or '?'}, OTA {update or 'none'}")
    if gpu and GB10 in gpu[0]:
        yield from _memory(host, update or build)


def _release(version: str, evidence: str) -> Finding:
    if not version:
        return Finding(NAME, "unknown", "no version in /etc/dgx-release", "cat /etc/dgx-release")
    newest = list(known.RELEASES)[-1]
    source = known.RELEASES.get(version, known.RELEASES[newest]).source
    if numbers(version)[0] < known.RELEASE_MAJOR:
        return Finding(NAME, "bad", f"{evidence}: older than DGX OS {known.RELEASE_MAJOR}", DASHBOARD, source)
    if numbers(version) > numbers(newest):
        return Finding(NAME, "unknown", f"{evidence}: newer than {newest}, the newest known to sparkwright")
    return Finding(NAME, "ok", evidence, source=source)


def _memory(host: Host, version: str) -> Iterator[Finding]:
    memory = host.memory()
    if memory is None:
        yield Finding("memory", "unknown", "cannot read /proc/meminfo")
        return
    total = memory["MemTotal"]
    shown = f"MemTotal {gib(total)} GiB"
    if total < known.GB10_MEMORY_BYTES - known.MEMORY_SLACK_BYTES:
        about = known.RELEASES.get(version)
        why = f" ({about.says})" if about and about.says else ""
        evidence = f"{shown}: {gib(known.GB10_MEMORY_BYTES - total)} GiB less than on other GB10 hosts{why}"
        yield Finding("memory", "warning", evidence, DASHBOARD, known.MEMORY_SOURCE)
    else:
        yield Finding("memory", "ok", shown, source=known.MEMORY_SOURCE)

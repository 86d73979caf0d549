"""Shared memory: what stands in /dev/shm is memory that CPU and GPU share, and what a killed engine left stays until a reboot."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.finding import Finding
from sparkwright.doctor.host import Host
from sparkwright.units import gib

NAME = "shared memory"
FOLDER = "/dev/shm"
BLOCK_BYTES = 512


def check(host: Host) -> Iterator[Finding]:
    about = known.SHM
    if not host.there(FOLDER):
        yield Finding(NAME, "unknown", f"no {FOLDER}", source=about.source)
        return
    held = sum(_bytes(host, f"{FOLDER}/{name}") for name in host.names_in(FOLDER))
    shown = f"{gib(held)} GiB in {FOLDER}"
    if held > known.SHM_BYTES:
        yield Finding(
            NAME, "warning", f"{shown}: {about.says}", f"ls -lS {FOLDER}; remove what no process uses", about.source
        )
    else:
        yield Finding(NAME, "ok", shown, source=about.source)


def _bytes(host: Host, path: str) -> int:
    """What a file takes of the memory; 0 for one that is gone."""
    try:
        return host.context.machine.path(path).lstat().st_blocks * BLOCK_BYTES
    except OSError:
        return 0

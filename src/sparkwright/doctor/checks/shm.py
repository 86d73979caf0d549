"""Shared memory: files in /dev/shm take memory that CPU and GPU share, and those of a killed engine stay until a reboot."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
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
    size = _size_bytes(host)
    shown = f"{gib(held)} GiB in {FOLDER}" if size is None else f"{gib(held)} of {gib(size)} GiB in {FOLDER}"
    if size is not None and size < known.SHM_LEAST_BYTES and host.wanted.ipc == "host":
        small = known.SHM_SMALL
        fix = f"sudo mount -o remount,size=50% {FOLDER} (and in /etc/fstab)"
        yield Finding(NAME, "warning", f"{shown}: {small.says}", fix, small.source)
    elif held > known.SHM_BYTES:
        yield Finding(
            NAME, "warning", f"{shown}: {about.says}", f"ls -lS {FOLDER}; remove what no process uses", about.source
        )
    else:
        yield Finding(NAME, "ok", shown, source=about.source)


def _size_bytes(host: Host) -> int | None:
    """Return the capacity of /dev/shm; None if it can't be read, or on a simulated host, whose folder is on a disk."""
    if host.context.machine.root:
        return None
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _bytes(host: Host, path: str) -> int:
    """Return how much memory a file takes; 0 if it is gone."""
    try:
        return host.context.machine.path(path).lstat().st_blocks * BLOCK_BYTES
    except OSError:
        return 0

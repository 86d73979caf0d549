"""Free space on the disks for images and models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparkwright import units
from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host

NAME = "disk"


def check(host: Host) -> Iterator[Finding]:
    machine = host.context.machine
    folders = {"models": machine.expand(host.wanted.model_dir or "~")}
    root = (host.engine_info() or {}).get("DockerRootDir")
    if root and not machine.sandbox:
        folders["images"] = Path(str(root))
    seen: set[int] = set()
    yield from filter(None, (_room(host, what, folder, seen) for what, folder in folders.items()))


def _room(host: Host, what: str, folder: Path, seen: set[int]) -> Finding | None:
    """Return the finding of one disk; None for a disk that was checked already."""
    try:
        place = next(parent for parent in (folder, *folder.parents) if _there(parent))
        device = place.stat().st_dev
        free = host.context.machine.free_bytes(place)
    except OSError as error:
        return Finding(NAME, "unknown", f"{folder}: {error.strerror}")
    if device in seen:
        return None
    seen.add(device)
    shown = f"{units.size(free)} free for {what} in {place}"
    fix = f"invoke images.prune --host {host.wanted.name or 'HOST'}"
    if free < known.DISK_OUT_BYTES:
        return Finding(NAME, "bad", shown, fix, known.DISK)
    if free < known.DISK_LOW_BYTES:
        return Finding(NAME, "warning", f"{shown}: {known.DISK}", fix, known.DISK)
    return Finding(NAME, "ok", shown, source=known.DISK)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False

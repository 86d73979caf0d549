"""The model folders on a host: their verified files, sizes, and the containers that use them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.host.models import staging_area
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders
from sparkwright.trust.names import leads_out

KEPT_BY_TRANSFERS = (staging_area.NAME, ".cache/huggingface")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder on a host."""

    dir: str
    id: str
    commit: str
    files: int
    size_bytes: int
    #: files that have changed since they were verified
    changed: list[str]
    #: containers, running or not, that mount it
    used_by: list[str]


def found(context: Context) -> list[ModelFolder]:
    """Return every existing folder with verified files. Raises Failed if Docker cannot be queried."""
    mounts = list(own_folders.mounts(context))
    return [
        ModelFolder(
            dir=str(manifest.folder),
            id=str(manifest.about.get("id", "")),
            commit=str(manifest.about.get("commit", "")),
            files=len(manifest.rows),
            size_bytes=on_disk(manifest),
            changed=manifest.changed(),
            used_by=sorted({name for name, source in mounts if overlaps(manifest.folder, source)}),
        )
        for manifest in Manifest.all(context.state)
        if manifest.folder.is_dir()
    ]


def on_disk(manifest: Manifest) -> int:
    """Return the bytes that removing it would free: its files and leftovers of transfers."""
    return sum(own_folders.disk_bytes(path) for path in (*own_files(manifest), *leftovers(manifest.folder)))


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield partial files of transfers, ours and Hugging Face's, in a model's folder."""
    for part in kept_by_transfers(folder):
        yield from (path for path in part.rglob("*") if path.is_file() or path.is_symlink())


def kept_by_transfers(folder: Path) -> list[Path]:
    """Return the folders for partial files of transfers, without those that a link leads out of the model's folder."""
    return [folder / part for part in KEPT_BY_TRANSFERS if not leads_out(folder, folder / part)]


def own_files(manifest: Manifest) -> list[Path]:
    """Return the verified files that are in the folder itself; files behind a link that leads out of it belong elsewhere."""
    return [
        manifest.folder / path
        for path in manifest.rows
        if not leads_out(manifest.folder, (manifest.folder / path).parent)
    ]


def overlaps(folder: Path, source: Path) -> bool:
    """Return True if a mount gives a container access to any part of a folder."""
    real, mounted = Path(os.path.realpath(folder)), Path(os.path.realpath(source))
    return real == mounted or mounted in real.parents or real in mounted.parents

"""The folders of models on a host: what was proved in them, how large they are, and which containers use them."""

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
    """changed: files that are not as they were proved. used_by: containers, running or not, that mount it."""

    dir: str
    id: str
    commit: str
    files: int
    size_bytes: int
    changed: list[str]
    used_by: list[str]


def found(context: Context) -> list[ModelFolder]:
    """Every folder that something was proved about and that is still there. Raises Failed when Docker can't be asked."""
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
    """Bytes that removing it would free: its files and what transfers left."""
    return sum(own_folders.disk_bytes(path) for path in (*own_files(manifest), *leftovers(manifest.folder)))


def leftovers(folder: Path) -> Iterator[Path]:
    """Partial files of transfers, ours and Hugging Face's, in a model's folder."""
    for part in kept_by_transfers(folder):
        yield from (path for path in part.rglob("*") if path.is_file() or path.is_symlink())


def kept_by_transfers(folder: Path) -> list[Path]:
    """Where transfers keep it, when no link leads out of the folder: then it is another's."""
    return [folder / part for part in KEPT_BY_TRANSFERS if not leads_out(folder, folder / part)]


def own_files(manifest: Manifest) -> list[Path]:
    """What was proved in the folder and stands in it: where a link leads out, the file is another's."""
    return [
        manifest.folder / path
        for path in manifest.rows
        if not leads_out(manifest.folder, (manifest.folder / path).parent)
    ]


def overlaps(folder: Path, source: Path) -> bool:
    """Whether a mount shows a container any part of a folder."""
    real, mounted = Path(os.path.realpath(folder)), Path(os.path.realpath(source))
    return real == mounted or mounted in real.parents or real in mounted.parents

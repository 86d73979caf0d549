"""The model folders on a host: their verified files, sizes, and the containers that use them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sparkwright.host.machine import Machine
from sparkwright.host.models import staging_area
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders
from sparkwright.trust.names import COMMIT, leads_out

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


# Models on this host that sparkwright did not download: in the hub client's cache, and in folders named like a model.
#
# Only names and sizes are read: a deploy verifies the contents by hash.

#: common folders of models, besides the recipes' own
FOLDERS = ("~/models", "/models", "/srv/models", "/data/models", "/opt/models")
WEIGHTS = (".safetensors", ".gguf")
#: limits: entries of a folder, and files of one model
MOST_ENTRIES, MOST_FILES = 500, 5000


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A model found on the host's disk."""

    #: the model that the folder's name matches
    id: str
    dir: str
    #: "own": the recipe's folder; "folder": another; "hub cache": its files are links into another folder
    place: str
    #: of all files, including weights
    size_bytes: int


def find_on_disk(machine: Machine, ids: Sequence[str], dirs: Sequence[str]) -> list[OnDisk]:
    """Return those of these models that are on the disk with weights.

    A folder counts as a model if it is the model's own, or has its name, with or without its owner.

    Args:
        ids: as the hub names them.
        dirs: each model's own folder.
    """
    found = [on_disk for each in zip(ids, dirs, strict=True) for on_disk in _of(machine, *each)]
    return list({(on_disk.id, on_disk.dir): on_disk for on_disk in found}.values())


def _of(machine: Machine, model_id: str, own: str) -> Iterator[OnDisk]:
    owner, _, name = model_id.rpartition("/")
    names = {item.lower() for item in (name, f"{owner}-{name}", f"{owner}--{name}", f"{owner}_{name}")}
    folders = [machine.expand(own)]
    for parent in FOLDERS:
        at = machine.expand(parent) if parent.startswith("~") else machine.path(parent)
        folders += [path for path in _folders(at) if path.name.lower() in names]
        folders += [at / model_id] if owner else []
    for folder in dict.fromkeys(folders):
        if size := _weights(folder):
            yield OnDisk(model_id, str(folder), "own" if folder == folders[0] else "folder", size)
    for snapshot in _snapshots(machine, model_id):
        if size := _weights(snapshot):
            yield OnDisk(model_id, str(snapshot), "hub cache", size)


def _snapshots(machine: Machine, model_id: str) -> list[Path]:
    """Return the newest snapshot of a model in the hub client's cache; empty if there is none."""
    home = machine.env.get("HF_HOME") or str(machine.home / ".cache/huggingface")
    hub = Path(machine.env.get("HF_HUB_CACHE") or f"{home}/hub")
    there = _folders(hub / f"models--{model_id.replace('/', '--')}" / "snapshots")
    return sorted((path for path in there if COMMIT.fullmatch(path.name)), key=_changed_s, reverse=True)[:1]


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _folders(at: Path) -> list[Path]:
    try:
        return [path for path in islice(at.iterdir(), MOST_ENTRIES) if path.is_dir()]
    except OSError:
        return []


def _weights(folder: Path) -> int:
    """Return the total size of a folder's files, bytes; 0 if there are no weights among them."""
    total, weights = 0, False
    below = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    for path in islice(below, MOST_FILES):
        try:
            total += path.stat().st_size
        except OSError:
            continue
        weights = weights or path.suffix in WEIGHTS
    return total if weights else 0

"""Models on this host that sparkwright did not download: in the hub client's cache, and in folders named like a model.

Only names and sizes are read: a deploy verifies the contents by hash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sparkwright.host.machine import Machine
from sparkwright.trust.names import COMMIT

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


def find(machine: Machine, ids: Sequence[str], dirs: Sequence[str]) -> list[OnDisk]:
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

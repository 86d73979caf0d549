"""The model folders on a host: their verified files, sizes and users, files that replace others, and those kept meanwhile.

Downloaded files stay in a staging folder until all of them are verified; then they are moved into place together. A server that
restarts in the middle of a download finds the old model, never half of each. The staging folder is inside the model's folder, so
that moving is a rename. Verified files are remembered: a resumed run does not hash them again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sparkwright.host.machine import Machine
from sparkwright.host.models import file_transfer
from sparkwright.host.models.manifest import Manifest, expected_hash, file_size, hash_file, read_stamp
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders, verified_states
from sparkwright.host.state import write_atomically
from sparkwright.trust import bounds
from sparkwright.trust.model_files import check_model_file
from sparkwright.trust.names import COMMIT, is_outside, resolve_entry

STAGING_FOLDER = ".cache/sparkwright"


class Staging:
    """The staging folder of a manifest's folder."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.path = resolve_entry(manifest.folder, STAGING_FOLDER)
        self._drop_links()

    def has_full_file(self, file: Mapping[str, Any]) -> bool:
        """Return True if a file is there in its full size."""
        return bool(file_size(self.path / file["path"]) == file["size_bytes"])

    def verify_or_remove(self, file: Mapping[str, Any]) -> bool:
        """Return True if the staged file has the wanted hash; remove it otherwise."""
        path = self.path / file["path"]
        current, recorded = read_stamp(path), self.manifest.staged.get(file["path"])
        if current is not None and recorded == [*current, expected_hash(file)]:
            return True
        if self.has_full_file(file) and hash_file(path, file) == expected_hash(file):
            return True
        path.unlink(missing_ok=True)
        return False

    def mark_verified(self, file: Mapping[str, Any]) -> None:
        """Record that a staged file was just verified."""
        current = read_stamp(self.path / file["path"])
        if current is not None:
            self.manifest.staged[file["path"]] = [*current, expected_hash(file)]

    def move_into_place(self, files: Iterable[Mapping[str, Any]]) -> None:
        """Move every staged file into place, each atomically, and remove the staging folder."""
        for file in files:
            target = resolve_entry(self.manifest.folder, file["path"])
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.path / file["path"]).replace(target)
            self.manifest.mark_verified(file)
        self.manifest.staged.clear()
        shutil.rmtree(self.path, ignore_errors=True)

    def clean_up(self, files: Iterable[Mapping[str, Any]], *, disk_is_full: bool) -> None:
        """Remove partial files that cannot be resumed, or all of them after a full disk; complete files stay."""
        if disk_is_full or not file_transfer.can_resume(self.path):
            file_transfer.remove_leftovers(self.path)
        if not self.partial_files() and not any(self.has_full_file(file) for file in files):
            shutil.rmtree(self.path, ignore_errors=True)

    def _drop_links(self) -> None:
        """Remove links that someone else may have placed there, so that none is written through."""
        if self.path.is_symlink():
            self.path.unlink()
        for parent, folders, names in os.walk(self.path):
            for path in (Path(parent) / name for name in (*folders, *names)):
                if path.is_symlink():
                    path.unlink()

    def partial_files(self) -> list[Path]:
        """Return the partial files, still growing or left by an interrupted transfer."""
        return list((self.path / ".cache").rglob("*.incomplete"))


KEPT_FOLDER = ".before"
KEPT_RECORD = ".about.json"


def keep_files(folder: Path, paths: Iterable[str], commit: str) -> None:
    """Keep these files of a model's folder as they are now. Files that are kept already stay: they are older.

    Args:
        commit: of the revision they belong to.

    Raises:
        OSError: The file system does not support hard links.
    """
    kept_folder, new_paths = resolve_entry(folder, KEPT_FOLDER), set(_list_new(folder))
    if kept_folder.is_symlink():
        kept_folder.unlink()
    kept_folder.mkdir(exist_ok=True)
    for path in paths:
        if (folder / path).is_file() and not (kept_folder / path).exists() and path not in new_paths:
            resolve_entry(folder, f"{KEPT_FOLDER}/{path}").parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / path, kept_folder / path)
        elif not (folder / path).exists() and not (kept_folder / path).exists():
            new_paths.add(path)
    record = {"commit": _read_kept_record(folder).get("commit") or commit, "new": sorted(new_paths)}
    write_atomically(kept_folder / KEPT_RECORD, json.dumps(record).encode(), mode=0o644)


def kept_commit(folder: Path) -> str:
    """Return the kept revision; empty if there is none."""
    return str(_read_kept_record(folder).get("commit", ""))


def restore_kept(folder: Path) -> int:
    """Move every kept file back, and remove those of the other revision. Returns the number of changed files."""
    kept_folder = folder / KEPT_FOLDER
    if kept_folder.is_symlink():  # its target belongs elsewhere
        kept_folder.unlink()
    changed = 0
    for path in _list_kept(folder):
        target = resolve_entry(folder, str(path.relative_to(kept_folder)))
        changed += not (target.exists() and target.samefile(path))
        path.replace(target)
    for name in _list_new(folder):
        with contextlib.suppress(FileNotFoundError):
            resolve_entry(folder, name).unlink()
            changed += 1
    forget_kept(folder)
    return changed


def forget_kept(folder: Path) -> None:
    """Remove the kept files: the other revision is verified."""
    shutil.rmtree(folder / KEPT_FOLDER, ignore_errors=True)


def restore_kept_and_record(context: Context, folder: Path) -> int:
    """Move every kept file back, and restore the record of the verified files."""
    kept_paths = [str(path.relative_to(folder / KEPT_FOLDER)) for path in _list_kept(folder)]
    changed = restore_kept(folder)
    Manifest.load(context.state, folder).restore_kept(kept_paths)
    return changed


def forget_kept_and_record(context: Context, folder: Path) -> None:
    """Do the same as `forget_kept`, and remove the record of the older files."""
    forget_kept(folder)
    Manifest.load(context.state, folder).forget_kept()


def replaced_folders(context: Context) -> dict[Path, str]:
    """Return the model folders of the last verified state where another revision replaced it, with the kept commits."""
    models = verified_states.models_of(verified_states.load_last(context.state))
    folders = [context.machine.expand(model["dir"]) for model in models if model.get("dir")]
    return {folder: commit for folder in folders if (commit := kept_commit(folder))}


def _list_kept(folder: Path) -> list[Path]:
    """Return the kept files; none if the folder is a link, whose target belongs elsewhere."""
    kept_folder = folder / KEPT_FOLDER
    if kept_folder.is_symlink():
        return []
    return [path for path in kept_folder.rglob("*") if path.is_file() and path != kept_folder / KEPT_RECORD]


def _list_new(folder: Path) -> list[str]:
    """Return the names of files that came with the other revision, validated: anyone with write access may have added some."""
    value = _read_kept_record(folder).get("new")
    names = value if isinstance(value, list) else []
    return [name for name in names if isinstance(name, str) and not check_model_file(name)]


def _read_kept_record(folder: Path) -> dict[str, Any]:
    try:
        data = bounds.parse_bounded_json((folder / KEPT_FOLDER / KEPT_RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


TRANSFER_FOLDERS = (STAGING_FOLDER, ".cache/huggingface")


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


def list_folders(context: Context) -> list[ModelFolder]:
    """Return every existing folder with verified files. Raises Failed if Docker cannot be queried."""
    mounts = list(own_folders.iter_mounts(context))
    return [
        ModelFolder(
            dir=str(manifest.folder),
            id=str(manifest.about.get("id", "")),
            commit=str(manifest.about.get("commit", "")),
            files=len(manifest.rows),
            size_bytes=removable_bytes(manifest),
            changed=manifest.changed(),
            used_by=sorted({name for name, source in mounts if overlaps(manifest.folder, source)}),
        )
        for manifest in Manifest.load_all(context.state)
        if manifest.folder.is_dir()
    ]


def removable_bytes(manifest: Manifest) -> int:
    """Return the bytes that removing it would free: its files and leftovers of transfers."""
    return sum(own_folders.disk_bytes(path) for path in (*own_files(manifest), *leftovers(manifest.folder)))


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield partial files of transfers, ours and Hugging Face's, in a model's folder."""
    for part in transfer_folders(folder):
        yield from (path for path in part.rglob("*") if path.is_file() or path.is_symlink())


def transfer_folders(folder: Path) -> list[Path]:
    """Return the folders for partial files of transfers, without those that a link leads out of the model's folder."""
    return [folder / part for part in TRANSFER_FOLDERS if not is_outside(folder, folder / part)]


def own_files(manifest: Manifest) -> list[Path]:
    """Return the verified files that are in the folder itself; files behind a link that leads out of it belong elsewhere."""
    return [
        manifest.folder / path
        for path in manifest.rows
        if not is_outside(manifest.folder, (manifest.folder / path).parent)
    ]


def overlaps(folder: Path, source: Path) -> bool:
    """Return True if a mount gives a container access to any part of a folder."""
    real, mounted = Path(os.path.realpath(folder)), Path(os.path.realpath(source))
    return real == mounted or mounted in real.parents or real in mounted.parents


# Models on this host that sparkwright did not download: in the hub client's cache, and in folders named like a model.
#
# Only names and sizes are read: a deploy verifies the contents by hash.

#: common folders of models, besides the recipes' own
COMMON_FOLDERS = ("~/models", "/models", "/srv/models", "/data/models", "/opt/models")
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
#: limits: entries of a folder, and files of one model
MAX_ENTRIES, MAX_FILES = 500, 5000


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model found on the host's disk."""

    #: the model that the folder's name matches
    id: str
    dir: str
    #: "own": the recipe's folder; "folder": another; "hub cache": its files are links into another folder
    place: str
    #: of all files, including weights
    size_bytes: int


def find_on_disk(machine: Machine, ids: Sequence[str], dirs: Sequence[str]) -> list[ModelOnDisk]:
    """Return those of these models that are on the disk with weights.

    A folder counts as a model if it is the model's own, or has its name, with or without its owner.

    Args:
        ids: as the hub names them.
        dirs: each model's own folder.
    """
    models = [on_disk for each in zip(ids, dirs, strict=True) for on_disk in _find_model(machine, *each)]
    return list({(on_disk.id, on_disk.dir): on_disk for on_disk in models}.values())


def _find_model(machine: Machine, model_id: str, own_folder: str) -> Iterator[ModelOnDisk]:
    owner, _, name = model_id.rpartition("/")
    names = {item.lower() for item in (name, f"{owner}-{name}", f"{owner}--{name}", f"{owner}_{name}")}
    folders = [machine.expand(own_folder)]
    for parent in COMMON_FOLDERS:
        parent_path = machine.expand(parent) if parent.startswith("~") else machine.path(parent)
        folders += [path for path in _list_subfolders(parent_path) if path.name.lower() in names]
        folders += [parent_path / model_id] if owner else []
    for folder in dict.fromkeys(folders):
        if size := _model_bytes(folder):
            yield ModelOnDisk(model_id, str(folder), "own" if folder == folders[0] else "folder", size)
    for snapshot in _newest_snapshot(machine, model_id):
        if size := _model_bytes(snapshot):
            yield ModelOnDisk(model_id, str(snapshot), "hub cache", size)


def _newest_snapshot(machine: Machine, model_id: str) -> list[Path]:
    """Return the newest snapshot of a model in the hub client's cache; empty if there is none."""
    home = machine.env.get("HF_HOME") or str(machine.home / ".cache/huggingface")
    hub = Path(machine.env.get("HF_HUB_CACHE") or f"{home}/hub")
    snapshots = _list_subfolders(hub / f"models--{model_id.replace('/', '--')}" / "snapshots")
    return sorted((path for path in snapshots if COMMIT.fullmatch(path.name)), key=_modified_s, reverse=True)[:1]


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _list_subfolders(parent: Path) -> list[Path]:
    try:
        return [path for path in islice(parent.iterdir(), MAX_ENTRIES) if path.is_dir()]
    except OSError:
        return []


def _model_bytes(folder: Path) -> int:
    """Return the total size of a folder's files, bytes; 0 if there are no weights among them."""
    total, has_weights = 0, False
    paths = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    for path in islice(paths, MAX_FILES):
        try:
            total += path.stat().st_size
        except OSError:
            continue
        has_weights = has_weights or path.suffix in WEIGHT_SUFFIXES
    return total if has_weights else 0

"""The model folders on a host: staged downloads, files kept for a rollback, sizes, containers that use them, and other models.

Downloaded files stay in a staging folder until all of them are verified; then they are moved into place together. A server that
restarts during a download finds the complete old model. The staging folder is inside the model's folder, so that moving is a
rename. The manifest records verified files, so that a resumed run does not hash them again.

Models that sparkwright did not download are found by their names and sizes; a deploy verifies their files by hash.
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
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import bounds
from sparkwright.trust.model_files import check_model_file
from sparkwright.trust.names import COMMIT, is_outside, resolve_entry

STAGING_FOLDER = ".cache/sparkwright"
TRANSFER_FOLDERS = (STAGING_FOLDER, ".cache/huggingface")
#: the files of the previous revision, and a record of its commit and of the files that only the new revision has
KEPT_FOLDER = ".before"
KEPT_RECORD_FILE = ".about.json"
#: usual folders of models
COMMON_FOLDERS = ("~/models", "/models", "/srv/models", "/data/models", "/opt/models")
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
#: limits on a search: entries per folder, and files per model
MAX_ENTRIES, MAX_FILES = 500, 5000


class Staging:
    """The staging folder of a manifest's folder."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.path = resolve_entry(manifest.folder, STAGING_FOLDER)
        self._remove_links()

    def has_full_file(self, file: Mapping[str, Any]) -> bool:
        """Return True if a staged file has its full size."""
        return bool(file_size(self.path / file["path"]) == file["size_bytes"])

    def verify_or_remove(self, file: Mapping[str, Any]) -> bool:
        """Return True if the staged file has the expected hash; otherwise remove it."""
        path = self.path / file["path"]
        stamp = read_stamp(path)
        if stamp is not None and self.manifest.staged_rows.get(file["path"]) == [*stamp, expected_hash(file)]:
            return True
        if self.has_full_file(file) and hash_file(path, file) == expected_hash(file):
            return True
        path.unlink(missing_ok=True)
        return False

    def mark_verified(self, file: Mapping[str, Any]) -> None:
        """Record a staged file as verified, with its current stamp."""
        stamp = read_stamp(self.path / file["path"])
        if stamp is not None:
            self.manifest.staged_rows[file["path"]] = [*stamp, expected_hash(file)]

    def move_into_place(self, files: Iterable[Mapping[str, Any]]) -> None:
        """Move every staged file into place, each atomically, and remove the staging folder."""
        for file in files:
            target = resolve_entry(self.manifest.folder, file["path"])
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.path / file["path"]).replace(target)
            self.manifest.mark_verified(file)
        self.manifest.staged_rows.clear()
        shutil.rmtree(self.path, ignore_errors=True)

    def clean_up(self, files: Iterable[Mapping[str, Any]], *, disk_is_full: bool) -> None:
        """Remove partial files that cannot be resumed, or all of them if the disk is full. Complete files stay."""
        if disk_is_full or not file_transfer.can_resume(self.path):
            file_transfer.remove_leftovers(self.path)
        if not self.partial_files() and not any(self.has_full_file(file) for file in files):
            shutil.rmtree(self.path, ignore_errors=True)

    def _remove_links(self) -> None:
        """Remove symlinks, through which a download would write into other folders."""
        if self.path.is_symlink():
            self.path.unlink()
        for parent, folders, names in os.walk(self.path):
            for path in (Path(parent) / name for name in (*folders, *names)):
                if path.is_symlink():
                    path.unlink()

    def partial_files(self) -> list[Path]:
        """Return the partial files of the current transfer and of interrupted ones."""
        return list((self.path / ".cache").rglob("*.incomplete"))


def keep_files(folder: Path, paths: Iterable[str], commit: str) -> None:
    """Keep the current state of these files for a rollback, as hard links. Files already kept are older, so they stay.

    Args:
        commit: the commit of the current files.

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
    write_atomically(kept_folder / KEPT_RECORD_FILE, json.dumps(record).encode(), mode=0o644)


def kept_commit(folder: Path) -> str:
    """Return the commit of the kept files, or "" if none are kept."""
    return str(_read_kept_record(folder).get("commit", ""))


def restore_kept(folder: Path) -> int:
    """Move the kept files back, and remove files that only the new revision has. Returns the number of changed files."""
    kept_folder = folder / KEPT_FOLDER
    if kept_folder.is_symlink():
        kept_folder.unlink()
    changed_count = 0
    for path in _list_kept(folder):
        target = resolve_entry(folder, str(path.relative_to(kept_folder)))
        changed_count += not (target.exists() and target.samefile(path))
        path.replace(target)
    for name in _list_new(folder):
        with contextlib.suppress(FileNotFoundError):
            resolve_entry(folder, name).unlink()
            changed_count += 1
    forget_kept(folder)
    return changed_count


def forget_kept(folder: Path) -> None:
    """Remove the kept files, once the new revision is verified."""
    shutil.rmtree(folder / KEPT_FOLDER, ignore_errors=True)


def restore_kept_with_manifest(context: Context, folder: Path) -> int:
    """Restore the kept files, and their manifest. Returns the number of changed files."""
    kept_paths = [str(path.relative_to(folder / KEPT_FOLDER)) for path in _list_kept(folder)]
    changed_count = restore_kept(folder)
    Manifest.load(context.state, folder).restore_kept(kept_paths)
    return changed_count


def forget_kept_with_manifest(context: Context, folder: Path) -> None:
    """Remove the kept files and their manifest, once the new revision is verified."""
    forget_kept(folder)
    Manifest.load(context.state, folder).forget_kept()


def replaced_folders(context: Context) -> dict[Path, str]:
    """Return the kept commit by folder, for the models of the last verified state that another revision has replaced."""
    models = verified_states.models_of(verified_states.load_last(context.state).model)
    folders = [context.machine.expand(folder) for model in models if (folder := model.get("dir"))]
    return {folder: commit for folder in folders if (commit := kept_commit(folder))}


def _list_kept(folder: Path) -> list[Path]:
    """Return the kept files, or none if the folder is a symlink."""
    kept_folder = folder / KEPT_FOLDER
    if kept_folder.is_symlink():
        return []
    return [path for path in kept_folder.rglob("*") if path.is_file() and path != kept_folder / KEPT_RECORD_FILE]


def _list_new(folder: Path) -> list[str]:
    """Return the files that only the new revision has. Names are validated, because other users may write the record."""
    paths = _read_kept_record(folder).get("new")
    if not isinstance(paths, list):
        return []
    return [path for path in paths if isinstance(path, str) and not check_model_file(path)]


def _read_kept_record(folder: Path) -> dict[str, Any]:
    try:
        data = bounds.parse_bounded_json((folder / KEPT_FOLDER / KEPT_RECORD_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with a model that sparkwright verified."""

    dir: str
    id: str
    commit: str
    #: number of verified files
    files: int
    #: bytes that removing the folder would free
    size_bytes: int
    #: files that have changed since they were verified
    changed: list[str]
    #: containers that mount the folder, running or stopped
    used_by: list[str]


def list_folders(context: Context) -> list[ModelFolder]:
    """Return the folders that exist and have a manifest. Raises Failed if Docker cannot be queried."""
    mounts = list(own_folders.iter_mounts(context))
    return [
        ModelFolder(
            dir=str(manifest.folder),
            id=str(manifest.about.get("id", "")),
            commit=str(manifest.about.get("commit", "")),
            files=len(manifest.rows),
            size_bytes=removable_bytes(manifest),
            changed=manifest.changed_files(),
            used_by=sorted({name for name, source in mounts if overlaps(manifest.folder, source)}),
        )
        for manifest in Manifest.load_all(context.state)
        if manifest.folder.is_dir()
    ]


def removable_bytes(manifest: Manifest) -> int:
    """Return the bytes that removing a model's folder would free: verified files and leftovers of transfers."""
    leftovers = (
        path
        for transfer_folder in transfer_folders(manifest.folder)
        for path in transfer_folder.rglob("*")
        if path.is_file() or path.is_symlink()
    )
    return sum(own_folders.disk_bytes(path) for path in (*own_files(manifest), *leftovers))


def removable_manifests(state: StateFolder) -> list[Manifest]:
    """Return the manifests of models that still have files to remove."""
    return [manifest for manifest in Manifest.load_all(state) if removable_bytes(manifest)]


def transfer_folders(folder: Path) -> list[Path]:
    """Return the folders for partial files, sparkwright's and Hugging Face's, except links out of the model's folder."""
    return [folder / subfolder for subfolder in TRANSFER_FOLDERS if not is_outside(folder, folder / subfolder)]


def own_files(manifest: Manifest) -> list[Path]:
    """Return the verified files that are inside the folder. Files behind a link out of it are not removed with the folder."""
    folder = manifest.folder
    return [folder / path for path in manifest.rows if not is_outside(folder, (folder / path).parent)]


def overlaps(folder: Path, source: Path) -> bool:
    """Return True if a mount gives a container access to any part of a folder."""
    real_folder, mounted_folder = Path(os.path.realpath(folder)), Path(os.path.realpath(source))
    return (
        real_folder == mounted_folder or mounted_folder in real_folder.parents or real_folder in mounted_folder.parents
    )


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model found on the host's disk."""

    #: the model that the folder's name matches
    id: str
    dir: str
    #: "own": the recipe's folder; "folder": another; "hub cache": its files are links into another folder
    place: str
    #: total size of the folder's files
    size_bytes: int


def find_on_disk(machine: Machine, ids: Sequence[str], dirs: Sequence[str]) -> list[ModelOnDisk]:
    """Return the folders on this host that contain these models, with weights.

    A folder matches a model if it is the recipe's folder, or is named after the model, with or without the model's owner.

    Args:
        ids: the models' ids on the hub.
        dirs: the recipe's folder for each model.
    """
    models = [
        model for model_id, folder in zip(ids, dirs, strict=True) for model in _find_model(machine, model_id, folder)
    ]
    return list({(model.id, model.dir): model for model in models}.values())


def _find_model(machine: Machine, model_id: str, own_folder: str) -> Iterator[ModelOnDisk]:
    owner, _, name = model_id.rpartition("/")
    folder_names = {item.lower() for item in (name, f"{owner}-{name}", f"{owner}--{name}", f"{owner}_{name}")}
    folders = [machine.expand(own_folder)]
    for common_folder in COMMON_FOLDERS:
        parent = machine.expand(common_folder) if common_folder.startswith("~") else machine.path(common_folder)
        folders += [path for path in _list_subfolders(parent) if path.name.lower() in folder_names]
        folders += [parent / model_id] if owner else []
    place_by_folder = {folder: "own" if folder == folders[0] else "folder" for folder in folders}
    snapshot = _find_newest_snapshot(machine, model_id)
    for folder, place in (*place_by_folder.items(), *([(snapshot, "hub cache")] if snapshot else ())):
        if size_bytes := _model_bytes(folder):
            yield ModelOnDisk(model_id, str(folder), place, size_bytes)


def _find_newest_snapshot(machine: Machine, model_id: str) -> Path | None:
    """Return the folder of a model's newest snapshot in the cache of Hugging Face's client."""
    home = machine.env.get("HF_HOME") or str(machine.home / ".cache/huggingface")
    cache = Path(machine.env.get("HF_HUB_CACHE") or f"{home}/hub")
    snapshots = _list_subfolders(cache / f"models--{model_id.replace('/', '--')}" / "snapshots")
    return max((path for path in snapshots if COMMIT.fullmatch(path.name)), key=_modified_s, default=None)


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
    """Return the total size of a folder's files, or 0 if it has no weights."""
    total_bytes, has_weights = 0, False
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    for path in islice(paths, MAX_FILES):
        try:
            total_bytes += path.stat().st_size
        except OSError:
            continue
        has_weights = has_weights or path.suffix in WEIGHT_SUFFIXES
    return total_bytes if has_weights else 0

"""Manifest of a model's files, which are verified by hash once and then recognized by their read_stamp (see `read_stamp`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.host.state import StateFolder
from sparkwright.trust import bounds
from sparkwright.trust.model_files import check_model_file

CHUNK_BYTES = 2**20
#: limit of a file's pages in the page cache while it is hashed again
DROP_EVERY_BYTES = 256 * 2**20
INDEX_SUFFIX = ".safetensors.index.json"
RECORD_PREFIX = "model-"
SHA256_DIGITS = 64
#: number of stamp fields that a link or a rename leaves unchanged
STABLE_STAMP_FIELDS = 3

#: rows that this process verified without saving them (in check mode), by the manifest's file
_UNSAVED_ROWS: dict[Path, dict[str, list[Any]]] = {}

Files = Iterable[Mapping[str, Any]]
OnBytes = Callable[[int], None]


@dataclass
class Manifest:
    """The verified files of a model's folder."""

    state: StateFolder
    folder: Path
    #: path -> [*stamp, hash]. A file is hashed again if it has changed, or was recorded by an earlier version, whose stamps have
    #: no ctime
    rows: dict[str, list[Any]]
    #: path of a safetensors index -> [its stamp, the files it names]
    indexes: dict[str, list[Any]] = field(default_factory=dict)
    #: the model's id and commit, and the paths of all its files
    about: dict[str, Any] = field(default_factory=dict)
    #: files in the staging folder, in the same form as rows
    staged: dict[str, list[Any]] = field(default_factory=dict)
    #: rows and about of the previous revision, as long as a rollback may need them
    kept: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, state: StateFolder, folder: Path) -> Manifest:
        """Return a folder's manifest as it was last saved or remembered."""
        manifest = cls._from_record(state, folder, state.read(_record_name(folder)) or {})
        manifest.rows |= _UNSAVED_ROWS.get(manifest._file, {})
        return manifest

    @classmethod
    def load_all(cls, state: StateFolder) -> Iterator[Manifest]:
        """Yield the manifest of every folder that has one."""
        for path in sorted(state.path.glob(f"{RECORD_PREFIX}*.json")):
            record = state.read(path.stem)
            if record and record.get("folder"):
                yield cls._from_record(state, Path(record["folder"]), record)

    @classmethod
    def _from_record(cls, state: StateFolder, folder: Path, record: Mapping[str, Any]) -> Manifest:
        files, indexes, staged = (_drop_outside_paths(record.get(key, {})) for key in ("files", "indexes", "staged"))
        about = record.get("about", {})
        paths = {"paths": [path for path in about["paths"] if not check_model_file(path)]} if "paths" in about else {}
        return cls(state, folder, files, indexes, {**about, **paths}, staged, record.get("kept", {}))

    def save(self) -> None:
        """Write the manifest, if it has changed."""
        data = {
            "folder": str(self.folder),
            "files": self.rows,
            "indexes": self.indexes,
            "about": self.about,
            "staged": self.staged,
            **({"kept": self.kept} if self.kept else {}),
        }
        _UNSAVED_ROWS.pop(self._file, None)
        if self.state.read(_record_name(self.folder)) != data:
            self.state.write(_record_name(self.folder), data)

    def remember(self) -> None:
        """Keep the verified rows in memory for the lifetime of this process, without saving them."""
        _UNSAVED_ROWS[self._file] = dict(self.rows)

    @property
    def _file(self) -> Path:
        return self.state.path / _record_name(self.folder)

    def forget_missing(self) -> None:
        """Forget files that are neither part of this revision nor on disk."""
        paths = set(self.about.get("paths", ()))
        self.rows = {path: row for path, row in self.rows.items() if path in paths or read_stamp(self.folder / path)}

    def keep_saved(self, *, first: bool) -> None:
        """Keep the saved manifest for a rollback.

        Args:
            first: if False, keep the manifest that was kept before, which is the older one.
        """
        saved = Manifest.load(self.state, self.folder)
        self.kept = {"files": saved.rows, "about": saved.about} if first else saved.kept

    def restore_kept(self, paths: Iterable[str]) -> None:
        """Restore the kept manifest after its files were moved back.

        Args:
            paths: paths of those files, whose ctime has changed because they were linked and moved.
        """
        if self.kept:
            kept_manifest = self._from_record(self.state, self.folder, self.kept)
            self.rows, self.about, self.kept = kept_manifest.rows, kept_manifest.about, {}
            for path in paths:
                current, row = read_stamp(self.folder / path), self.rows.get(path, [])
                if current is not None and row[:STABLE_STAMP_FIELDS] == current[:STABLE_STAMP_FIELDS]:
                    self.rows[path] = [*current, row[-1]]
            self.save()

    def forget_kept(self) -> None:
        """Forget the kept manifest, once the new revision is verified."""
        if self.kept:
            self.kept = {}
            self.save()

    def forget(self) -> None:
        """Remove the manifest."""
        _UNSAVED_ROWS.pop(self._file, None)
        self.state.remove(_record_name(self.folder))

    def is_verified(self, file: Mapping[str, Any]) -> bool:
        """Return True if this file was verified and has not changed since."""
        current = read_stamp(self.folder / file["path"])
        return current is not None and self.rows.get(file["path"]) == [*current, expected_hash(file)]

    def changed(self) -> list[str]:
        """Return the verified files that have changed or are missing, with one stat per file."""
        return [path for path, row in self.rows.items() if not self._is_unchanged(path, row)]

    def _is_unchanged(self, path: str, row: list[Any]) -> bool:
        """Return True if a file's stamp matches its row; an earlier version's row has only the first part of a stamp."""
        current, recorded = read_stamp(self.folder / path), row[:-1]
        return current is not None and recorded != [] and current[: len(recorded)] == recorded

    @property
    def commit(self) -> str:
        """The commit of these files; "" if it was not recorded."""
        return str(self.about.get("commit", ""))

    def is_complete(self) -> bool:
        """Return True if every file of the commit was verified and has not changed since, with one stat per file."""
        paths = self.about.get("paths") or ()
        return bool(paths and self.commit) and all(self._is_unchanged(path, self.rows.get(path, [])) for path in paths)

    def entries(self) -> list[dict[str, Any]]:
        """Return the files of the commit in the format of spark.lock."""
        return [_lock_entry(path, self.rows[path]) for path in self.about.get("paths", ()) if path in self.rows]

    def verify(self, files: Files, *, deep: bool = False, on_bytes: OnBytes = lambda count: None) -> list[str]:
        """Hash unverified files, in parallel. Returns the paths that are missing or wrong.

        Args:
            deep: also hash verified files again, and drop their pages from the cache.
            on_bytes: called with the number of bytes as they are read.
        """
        unverified = [file for file in files if deep or not self.is_verified(file)]
        same_size = [file for file in unverified if file_size(self.folder / file["path"]) == file["size_bytes"]]
        same_size.sort(key=lambda file: -int(file["size_bytes"]))
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
            hashes = list(
                pool.map(lambda file: hash_file(self.folder / file["path"], file, on_bytes, drop=deep), same_size)
            )
        for file in unverified:
            self.rows.pop(file["path"], None)
        for file, file_hash in zip(same_size, hashes, strict=True):
            if file_hash == expected_hash(file):
                self.mark_verified(file)
        return [file["path"] for file in unverified if not self.is_verified(file)]

    def mark_verified(self, file: Mapping[str, Any]) -> None:
        """Record that this file was just verified."""
        current = read_stamp(self.folder / file["path"])
        if current is not None:
            self.rows[file["path"]] = [*current, expected_hash(file)]

    def missing_shards(self, files: Files) -> list[str]:
        """Return the files that a shard index lists and the folder lacks. An unchanged index is not read again."""
        missing = []
        for path in (file["path"] for file in files if file["path"].endswith(INDEX_SUFFIX)):
            current = read_stamp(self.folder / path)
            if current is None:
                continue
            if self.indexes.get(path, [None])[0] != current:
                self.indexes[path] = [current, _read_shards(self.folder / path)]
            folder = Path(path).parent
            missing += [name for name in self.indexes[path][1] if read_stamp(self.folder / folder / name) is None]
        return missing


def _drop_outside_paths(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the rows without paths outside the folder, which versions before 1.0 accepted from a lock."""
    return {path: row for path, row in rows.items() if not check_model_file(path)}


def _lock_entry(path: str, row: list[Any]) -> dict[str, Any]:
    file_hash = str(row[-1])
    is_large = len(file_hash) == SHA256_DIGITS
    return {
        "path": path,
        "size_bytes": row[0],
        "sha256": file_hash if is_large else None,
        "blob_id": None if is_large else file_hash,
    }


def expected_hash(file: Mapping[str, Any]) -> str:
    """Return the expected hash of a file: the sha256 of a large file, git's blob id of a small one."""
    return str(file["sha256"] or file["blob_id"])


def total_bytes(files: Files) -> int:
    """Return the total size of files, bytes."""
    return sum(int(file["size_bytes"]) for file in files)


def hash_file(
    path: Path, file: Mapping[str, Any], on_bytes: OnBytes = lambda count: None, *, drop: bool = False
) -> str:
    """Return a file's hash, of the same kind as in the lock; "" if it cannot be read.

    Args:
        drop: drop its pages from the page cache.
    """
    hasher = hashlib.sha256() if file["sha256"] else hashlib.sha1(f"blob {file['size_bytes']}\0".encode())
    buffer = bytearray(CHUNK_BYTES)
    view, read_bytes = memoryview(buffer), 0
    try:
        with path.open("rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := source.readinto(buffer):
                hasher.update(view[:count])
                on_bytes(count)
                read_bytes += count
                if drop and read_bytes % DROP_EVERY_BYTES < count:  # the page cache takes memory from the GPU
                    os.posix_fadvise(source.fileno(), 0, read_bytes, os.POSIX_FADV_DONTNEED)
            if drop:
                os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return ""
    return hasher.hexdigest()


def read_stamp(path: Path) -> list[int] | None:
    """Return [size, mtime_ns, inode, ctime_ns] of a file; None if it is missing.

    Anyone with write access can reset a file's mtime. Its ctime is set by the kernel, also by a link, a rename or a chmod.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in a name from an index
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; -1 if it is missing."""
    return (read_stamp(path) or [-1])[0]


def _read_shards(index: Path) -> list[str]:
    """Return the files that an index lists; empty if it is malformed or too large."""
    try:
        raw = bounds.read_bytes(index, bounds.MAX_INDEX_BYTES)
        paths = bounds.parse_json(raw, max_bytes=bounds.MAX_INDEX_BYTES)["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    return sorted({item for item in paths if isinstance(item, str)})


def _record_name(folder: Path) -> str:
    return f"{RECORD_PREFIX}{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

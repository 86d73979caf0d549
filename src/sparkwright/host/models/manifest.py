"""Manifest of a model's files, which are verified by hash once and then recognized by their stamp (see `read_stamp`)."""

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
#: maximum size of a file's data in the page cache while it is hashed with `drop_cached_pages`
DROP_INTERVAL_BYTES = 256 * 2**20
INDEX_SUFFIX = ".safetensors.index.json"
RECORD_PREFIX = "model-"
SHA256_DIGITS = 64
#: number of stamp fields that a hard link or a rename does not change
STABLE_STAMP_FIELDS = 3

#: `rows` of manifests that this process verified but did not save (in check mode), by path of the manifest
_UNSAVED_ROWS: dict[Path, dict[str, list[Any]]] = {}

Files = Iterable[Mapping[str, Any]]
OnBytes = Callable[[int], None]


@dataclass
class Manifest:
    """The verified files of a model's folder."""

    state: StateFolder
    folder: Path
    #: [*stamp, hash] by path. Stamps that earlier versions wrote have no ctime, so these files are hashed again
    rows: dict[str, list[Any]]
    #: [stamp, listed files] of each safetensors index, by path
    indexes: dict[str, list[Any]] = field(default_factory=dict)
    #: the model's id and commit, and the paths of all its files
    about: dict[str, Any] = field(default_factory=dict)
    #: [*stamp, hash] of files in the staging folder, by path
    staged_rows: dict[str, list[Any]] = field(default_factory=dict)
    #: rows and about of the previous revision, while a rollback may need them
    kept_record: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, state: StateFolder, folder: Path) -> Manifest:
        """Return a folder's manifest as last saved, together with the rows kept by `remember`."""
        manifest = cls._from_record(state, folder, state.read(_record_name(folder)) or {})
        manifest.rows |= _UNSAVED_ROWS.get(manifest._record_path, {})
        return manifest

    @classmethod
    def load_all(cls, state: StateFolder) -> Iterator[Manifest]:
        """Yield all saved manifests."""
        for path in sorted(state.path.glob(f"{RECORD_PREFIX}*.json")):
            record = state.read(path.stem)
            if record and record.get("folder"):
                yield cls._from_record(state, Path(record["folder"]), record)

    @classmethod
    def _from_record(cls, state: StateFolder, folder: Path, record: Mapping[str, Any]) -> Manifest:
        rows, indexes, staged_rows = (
            _drop_outside_paths(record.get(key, {})) for key in ("files", "indexes", "staged")
        )
        about = dict(record.get("about", {}))
        if "paths" in about:
            about["paths"] = [path for path in about["paths"] if not check_model_file(path)]
        return cls(state, folder, rows, indexes, about, staged_rows, record.get("kept", {}))

    def save(self) -> None:
        """Write the manifest, if it has changed."""
        data = {
            "folder": str(self.folder),
            "files": self.rows,
            "indexes": self.indexes,
            "about": self.about,
            "staged": self.staged_rows,
            **({"kept": self.kept_record} if self.kept_record else {}),
        }
        _UNSAVED_ROWS.pop(self._record_path, None)
        if self.state.read(_record_name(self.folder)) != data:
            self.state.write(_record_name(self.folder), data)

    def remember(self) -> None:
        """Keep the verified rows in memory for the lifetime of this process, without saving them."""
        _UNSAVED_ROWS[self._record_path] = dict(self.rows)

    @property
    def _record_path(self) -> Path:
        return self.state.path / _record_name(self.folder)

    @property
    def file(self) -> Path:
        """The saved manifest's file."""
        return self._record_path.with_name(f"{self._record_path.name}.json")

    def forget_missing(self) -> None:
        """Forget deleted files of other revisions."""
        paths = set(self.about.get("paths", ()))
        self.rows = {path: row for path, row in self.rows.items() if path in paths or read_stamp(self.folder / path)}

    def keep_saved(self, *, first: bool) -> None:
        """Keep a manifest for a rollback: the saved one if `first`, otherwise the older one that is already kept."""
        saved_manifest = Manifest.load(self.state, self.folder)
        self.kept_record = (
            {"files": saved_manifest.rows, "about": saved_manifest.about} if first else saved_manifest.kept_record
        )

    def restore_kept(self, paths: Iterable[str]) -> None:
        """Restore the kept manifest after its files (`paths`) were moved back, which changed their ctime."""
        if self.kept_record:
            kept_manifest = self._from_record(self.state, self.folder, self.kept_record)
            self.rows, self.about, self.kept_record = kept_manifest.rows, kept_manifest.about, {}
            for path in paths:
                stamp, row = read_stamp(self.folder / path), self.rows.get(path, [])
                if stamp is not None and row[:STABLE_STAMP_FIELDS] == stamp[:STABLE_STAMP_FIELDS]:
                    self.rows[path] = [*stamp, row[-1]]
            self.save()

    def forget_kept(self) -> None:
        """Forget the kept manifest, once the new revision is verified."""
        if self.kept_record:
            self.kept_record = {}
            self.save()

    def forget(self) -> None:
        """Remove the manifest."""
        _UNSAVED_ROWS.pop(self._record_path, None)
        self.state.remove(_record_name(self.folder))

    def is_verified(self, file: Mapping[str, Any]) -> bool:
        """Return True if this file was verified with the hash in the lock and has not changed since."""
        stamp = read_stamp(self.folder / file["path"])
        return stamp is not None and self.rows.get(file["path"]) == [*stamp, expected_hash(file)]

    def changed_files(self) -> list[str]:
        """Return the verified files that have changed or are missing, with one stat per file."""
        return [path for path, row in self.rows.items() if not self._is_unchanged(path, row)]

    def _is_unchanged(self, path: str, row: list[Any]) -> bool:
        """Return True if a file's stamp matches its row; in a row that an earlier version wrote, the stamp has fewer fields."""
        stamp, recorded = read_stamp(self.folder / path), row[:-1]
        return stamp is not None and recorded != [] and stamp[: len(recorded)] == recorded

    @property
    def commit(self) -> str:
        """The commit of the files, or "" if it was not recorded."""
        return str(self.about.get("commit", ""))

    def is_complete(self) -> bool:
        """Return True if every file of the commit was verified and has not changed since, with one stat per file."""
        paths = self.about.get("paths") or ()
        return bool(paths and self.commit) and all(self._is_unchanged(path, self.rows.get(path, [])) for path in paths)

    def entries(self) -> list[dict[str, Any]]:
        """Return the files of the commit in the format of spark.lock."""
        return [_lock_entry(path, self.rows[path]) for path in self.about.get("paths", ()) if path in self.rows]

    def verify(self, files: Files, *, deep: bool = False, on_bytes: OnBytes = lambda count: None) -> list[str]:
        """Hash unverified files, in parallel. Returns the paths of missing and wrong files.

        Args:
            deep: also hash verified files again, and drop the data from the page cache.
            on_bytes: called with the number of bytes after each read.
        """
        unverified_files = [file for file in files if deep or not self.is_verified(file)]
        same_size_files = [
            file for file in unverified_files if file_size(self.folder / file["path"]) == file["size_bytes"]
        ]
        same_size_files.sort(key=lambda file: -int(file["size_bytes"]))

        def hash_(file: Mapping[str, Any]) -> str:
            return hash_file(self.folder / file["path"], file, on_bytes, drop_cached_pages=deep)

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
            hashes = list(pool.map(hash_, same_size_files))
        for file in unverified_files:
            self.rows.pop(file["path"], None)
        for file, file_hash in zip(same_size_files, hashes, strict=True):
            if file_hash == expected_hash(file):
                self.mark_verified(file)
        return [file["path"] for file in unverified_files if not self.is_verified(file)]

    def mark_verified(self, file: Mapping[str, Any]) -> None:
        """Record a file as verified, with its current stamp."""
        stamp = read_stamp(self.folder / file["path"])
        if stamp is not None:
            self.rows[file["path"]] = [*stamp, expected_hash(file)]

    def missing_shards(self, files: Files) -> list[str]:
        """Return the files that a shard index lists but the folder lacks. An unchanged index is not read again."""
        missing_files = []
        for path in (file["path"] for file in files if file["path"].endswith(INDEX_SUFFIX)):
            index = self.folder / path
            stamp = read_stamp(index)
            if stamp is None:
                continue
            if self.indexes.get(path, [None])[0] != stamp:
                self.indexes[path] = [stamp, _read_shards(index)]
            missing_files += [name for name in self.indexes[path][1] if read_stamp(index.parent / name) is None]
        return missing_files


def _drop_outside_paths(rows_by_path: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Drop paths outside the folder, which versions before 1.0 accepted from a lock."""
    return {path: row for path, row in rows_by_path.items() if not check_model_file(path)}


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
    """Return the expected hash of a file: the sha256 of a large file, or git's blob id of a small one."""
    return str(file["sha256"] or file["blob_id"])


def total_bytes(files: Files) -> int:
    return sum(int(file["size_bytes"]) for file in files)


def hash_file(
    path: Path, file: Mapping[str, Any], on_bytes: OnBytes = lambda count: None, *, drop_cached_pages: bool = False
) -> str:
    """Return a file's hash, of the same kind as in its lock entry; "" if it cannot be read.

    Args:
        drop_cached_pages: drop the file from the page cache.
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
                # the page cache takes memory from the GPU
                if drop_cached_pages and read_bytes % DROP_INTERVAL_BYTES < count:
                    os.posix_fadvise(source.fileno(), 0, read_bytes, os.POSIX_FADV_DONTNEED)
            if drop_cached_pages:
                os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return ""
    return hasher.hexdigest()


def read_stamp(path: Path) -> list[int] | None:
    """Return [size, mtime_ns, inode, ctime_ns] of a file, or None if it is missing.

    Anyone with write access can set a file's mtime. The kernel sets the ctime, even on a link, a rename or a chmod.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in a name from an index
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, or -1 if it is missing."""
    return (read_stamp(path) or [-1])[0]


def _read_shards(index: Path) -> list[str]:
    """Return the files that an index lists; an empty list if it is malformed or too large."""
    try:
        raw = bounds.read_bytes(index, bounds.MAX_INDEX_BYTES)
        names = bounds.parse_json(raw, max_bytes=bounds.MAX_INDEX_BYTES)["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    return sorted({name for name in names if isinstance(name, str)})


def _record_name(folder: Path) -> str:
    return f"{RECORD_PREFIX}{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

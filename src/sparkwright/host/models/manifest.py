"""Manifest of a model's files, which are verified by hash once and then recognized by their stamp (see `stamp`)."""

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
from sparkwright.trust.model_files import why_not_a_model_file

CHUNK_BYTES = 2**20
#: limit of a file's pages in the page cache while it is hashed again
DROP_BYTES = 256 * 2**20
INDEX = ".safetensors.index.json"
PREFIX = "model-"
SHA256_DIGITS = 64
#: number of stamp fields that a link or a rename leaves unchanged
UNMOVED = 3

#: rows that this process verified without saving them (in check mode), by the manifest's file
_PROVED: dict[Path, dict[str, list[Any]]] = {}

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
    def of(cls, state: StateFolder, folder: Path) -> Manifest:
        """Return a folder's manifest as it was last saved or remembered."""
        found = cls._from(state, folder, state.read(_name(folder)) or {})
        found.rows |= _PROVED.get(found._file, {})
        return found

    @classmethod
    def all(cls, state: StateFolder) -> Iterator[Manifest]:
        """Yield the manifest of every folder that has one."""
        for path in sorted(state.path.glob(f"{PREFIX}*.json")):
            found = state.read(path.stem)
            if found and found.get("folder"):
                yield cls._from(state, Path(found["folder"]), found)

    @classmethod
    def _from(cls, state: StateFolder, folder: Path, found: Mapping[str, Any]) -> Manifest:
        files, indexes, staged = (_own(found.get(key, {})) for key in ("files", "indexes", "staged"))
        about = found.get("about", {})
        paths = (
            {"paths": [path for path in about["paths"] if not why_not_a_model_file(path)]} if "paths" in about else {}
        )
        return cls(state, folder, files, indexes, {**about, **paths}, staged, found.get("kept", {}))

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
        _PROVED.pop(self._file, None)
        if self.state.read(_name(self.folder)) != data:
            self.state.write(_name(self.folder), data)

    def remember(self) -> None:
        """Keep the verified rows in memory for the lifetime of this process, without saving them."""
        _PROVED[self._file] = dict(self.rows)

    @property
    def _file(self) -> Path:
        return self.state.path / _name(self.folder)

    def forget_gone(self) -> None:
        """Forget files that are neither part of this revision nor on disk."""
        paths = set(self.about.get("paths", ()))
        self.rows = {path: row for path, row in self.rows.items() if path in paths or stamp(self.folder / path)}

    def keep_saved(self, *, first: bool) -> None:
        """Keep the saved manifest for a rollback.

        Args:
            first: if False, keep the manifest that was kept before, which is the older one.
        """
        saved = Manifest.of(self.state, self.folder)
        self.kept = {"files": saved.rows, "about": saved.about} if first else saved.kept

    def restore_kept(self, paths: Iterable[str]) -> None:
        """Restore the kept manifest after its files were moved back.

        Args:
            paths: paths of those files, whose ctime has changed because they were linked and moved.
        """
        if self.kept:
            before = self._from(self.state, self.folder, self.kept)
            self.rows, self.about, self.kept = before.rows, before.about, {}
            for path in paths:
                now, row = stamp(self.folder / path), self.rows.get(path, [])
                if now is not None and row[:UNMOVED] == now[:UNMOVED]:
                    self.rows[path] = [*now, row[-1]]
            self.save()

    def forget_kept(self) -> None:
        """Forget the kept manifest, once the new revision is verified."""
        if self.kept:
            self.kept = {}
            self.save()

    def forget(self) -> None:
        """Remove the manifest."""
        _PROVED.pop(self._file, None)
        self.state.remove(_name(self.folder))

    def knows(self, file: Mapping[str, Any]) -> bool:
        """Return True if this file was verified and has not changed since."""
        now = stamp(self.folder / file["path"])
        return now is not None and self.rows.get(file["path"]) == [*now, wanted(file)]

    def changed(self) -> list[str]:
        """Return the verified files that have changed or are missing, with one stat per file."""
        return [path for path, row in self.rows.items() if not self._stands(path, row)]

    def _stands(self, path: str, row: list[Any]) -> bool:
        """Return True if a file's stamp matches its row; an earlier version's row has only the first part of a stamp."""
        now, known = stamp(self.folder / path), row[:-1]
        return now is not None and known != [] and now[: len(known)] == known

    @property
    def commit(self) -> str:
        """The commit of these files; "" if it was not recorded."""
        return str(self.about.get("commit", ""))

    def is_complete(self) -> bool:
        """Return True if every file of the commit was verified and has not changed since, with one stat per file."""
        paths = self.about.get("paths") or ()
        return bool(paths and self.commit) and all(self._stands(path, self.rows.get(path, [])) for path in paths)

    def entries(self) -> list[dict[str, Any]]:
        """Return the files of the commit in the format of spark.lock."""
        return [_entry(path, self.rows[path]) for path in self.about.get("paths", ()) if path in self.rows]

    def prove(self, files: Files, *, deep: bool = False, on_bytes: OnBytes = lambda count: None) -> list[str]:
        """Hash unverified files, in parallel. Returns the paths that are missing or wrong.

        Args:
            deep: also hash verified files again, and drop their pages from the cache.
            on_bytes: called with the number of bytes as they are read.
        """
        doubtful = [file for file in files if deep or not self.knows(file)]
        right = [file for file in doubtful if size_of(self.folder / file["path"]) == file["size_bytes"]]
        right.sort(key=lambda file: -int(file["size_bytes"]))
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
            hashes = list(pool.map(lambda file: digest(self.folder / file["path"], file, on_bytes, drop=deep), right))
        for file in doubtful:
            self.rows.pop(file["path"], None)
        for file, found in zip(right, hashes, strict=True):
            if found == wanted(file):
                self.note(file)
        return [file["path"] for file in doubtful if not self.knows(file)]

    def note(self, file: Mapping[str, Any]) -> None:
        """Record that this file was just verified."""
        now = stamp(self.folder / file["path"])
        if now is not None:
            self.rows[file["path"]] = [*now, wanted(file)]

    def unnamed(self, files: Files) -> list[str]:
        """Return the files that a shard index lists and the folder lacks. An unchanged index is not read again."""
        found = []
        for path in (file["path"] for file in files if file["path"].endswith(INDEX)):
            now = stamp(self.folder / path)
            if now is None:
                continue
            if self.indexes.get(path, [None])[0] != now:
                self.indexes[path] = [now, _shards(self.folder / path)]
            temporary = Path(path).parent
            found += [name for name in self.indexes[path][1] if stamp(self.folder / temporary / name) is None]
        return found


def _own(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the rows without paths outside the folder, which versions before 1.0 accepted from a lock."""
    return {path: row for path, row in rows.items() if not why_not_a_model_file(path)}


def _entry(path: str, row: list[Any]) -> dict[str, Any]:
    found = str(row[-1])
    large = len(found) == SHA256_DIGITS
    return {"path": path, "size_bytes": row[0], "sha256": found if large else None, "blob_id": None if large else found}


def wanted(file: Mapping[str, Any]) -> str:
    """Return the expected hash of a file: the sha256 of a large file, git's blob id of a small one."""
    return str(file["sha256"] or file["blob_id"])


def sizes(files: Files) -> int:
    """Return the total size of files, bytes."""
    return sum(int(file["size_bytes"]) for file in files)


def digest(path: Path, file: Mapping[str, Any], on_bytes: OnBytes = lambda count: None, *, drop: bool = False) -> str:
    """Return a file's hash, of the same kind as in the lock; "" if it cannot be read.

    Args:
        drop: drop its pages from the page cache.
    """
    hasher = hashlib.sha256() if file["sha256"] else hashlib.sha1(f"blob {file['size_bytes']}\0".encode())
    buffer = bytearray(CHUNK_BYTES)
    view, read = memoryview(buffer), 0
    try:
        with path.open("rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := source.readinto(buffer):
                hasher.update(view[:count])
                on_bytes(count)
                read += count
                if drop and read % DROP_BYTES < count:  # the page cache takes memory from the GPU
                    os.posix_fadvise(source.fileno(), 0, read, os.POSIX_FADV_DONTNEED)
            if drop:
                os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return ""
    return hasher.hexdigest()


def stamp(path: Path) -> list[int] | None:
    """Return [size, mtime_ns, inode, ctime_ns] of a file; None if it is missing.

    Anyone with write access can reset a file's mtime. Its ctime is set by the kernel, also by a link, a rename or a chmod.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in a name from an index
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns]


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; -1 if it is missing."""
    return (stamp(path) or [-1])[0]


def _shards(index: Path) -> list[str]:
    """Return the files that an index lists; empty if it is malformed or too large."""
    try:
        raw = bounds.bytes_of(index, bounds.INDEX_BYTES)
        named = bounds.json_of(raw, most_bytes=bounds.INDEX_BYTES)["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    return sorted({item for item in named if isinstance(item, str)})


def _name(folder: Path) -> str:
    return f"{PREFIX}{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

"""Whether the files of a model are the right ones: proved by hash once, then known by size, time and inode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.modules.state import StateFolder

CHUNK_BYTES = 4 * 2**20

Files = Iterable[Mapping[str, Any]]


@dataclass
class Manifest:
    """What was proved about a folder: path -> [size, mtime_ns, inode, hash]. A changed file has to be proved again."""

    state: StateFolder
    folder: Path
    rows: dict[str, list[Any]]

    @classmethod
    def of(cls, state: StateFolder, folder: Path) -> Manifest:
        """The manifest of a folder, as it was saved last."""
        return cls(state, folder, (state.read(_name(folder)) or {}).get("files", {}))

    def save(self) -> None:
        """Remember it."""
        self.state.write(_name(self.folder), {"folder": str(self.folder), "files": self.rows})

    def knows(self, file: Mapping[str, Any]) -> bool:
        """Whether this file was proved, and has not changed since."""
        now = _stamp(self.folder / file["path"])
        return now is not None and self.rows.get(file["path"]) == [*now, wanted(file)]

    def prove(self, files: Files) -> list[str]:
        """Hash what is not known yet, in parallel. Returns the paths that are missing or wrong."""
        doubtful = [file for file in files if not self.knows(file)]
        right = [file for file in doubtful if _size(self.folder / file["path"]) == file["size_bytes"]]
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
            hashes = list(pool.map(lambda file: digest(self.folder / file["path"], file), right))
        for file, found in zip(right, hashes, strict=True):
            self.rows.pop(file["path"], None)
            stamp = _stamp(self.folder / file["path"])
            if found == wanted(file) and stamp is not None:
                self.rows[file["path"]] = [*stamp, found]
        return [file["path"] for file in doubtful if not self.knows(file)]


def wanted(file: Mapping[str, Any]) -> str:
    """The hash a file must have: sha256 of a large one, git's blob id of a small one."""
    return str(file["sha256"] or file["blob_id"])


def digest(path: Path, file: Mapping[str, Any]) -> str:
    """The hash a file has, of the kind that the lock holds for it."""
    if file["sha256"]:
        hasher = hashlib.sha256()
    else:
        hasher = hashlib.sha1(f"blob {file['size_bytes']}\0".encode())
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _stamp(path: Path) -> list[int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _size(path: Path) -> int:
    stamp = _stamp(path)
    return stamp[0] if stamp else -1


def _name(folder: Path) -> str:
    return f"model-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

"""The staging folder for downloaded files until all of them are verified; then they are moved into place together.

A server that restarts in the middle of a download finds the old model, never half of each. The staging folder is inside the
model's folder, so that moving is a rename. Verified files are remembered: a resumed run does not hash them again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.host.models import file_transfer
from sparkwright.host.models.manifest import Manifest, digest, size_of, stamp, wanted
from sparkwright.trust.names import place

NAME = ".cache/sparkwright"


class Staging:
    """The staging folder of a manifest's folder."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.path = place(manifest.folder, NAME)
        self._drop_links()

    def holds(self, file: Mapping[str, Any]) -> bool:
        """Return True if a file is there in its full size."""
        return bool(size_of(self.path / file["path"]) == file["size_bytes"])

    def right(self, file: Mapping[str, Any]) -> bool:
        """Return True if the staged file has the wanted hash; remove it otherwise."""
        come = self.path / file["path"]
        now, known = stamp(come), self.manifest.staged.get(file["path"])
        if now is not None and known == [*now, wanted(file)]:
            return True
        if self.holds(file) and digest(come, file) == wanted(file):
            return True
        come.unlink(missing_ok=True)
        return False

    def note(self, file: Mapping[str, Any]) -> None:
        """Record that a staged file was just verified."""
        now = stamp(self.path / file["path"])
        if now is not None:
            self.manifest.staged[file["path"]] = [*now, wanted(file)]

    def place(self, files: Iterable[Mapping[str, Any]]) -> None:
        """Move every staged file into place, each atomically, and remove the staging folder."""
        for file in files:
            target = place(self.manifest.folder, file["path"])
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.path / file["path"]).replace(target)
            self.manifest.note(file)
        self.manifest.staged.clear()
        shutil.rmtree(self.path, ignore_errors=True)

    def tidy(self, files: Iterable[Mapping[str, Any]], *, disk_is_full: bool) -> None:
        """Remove partial files that cannot be resumed, or all of them after a full disk; complete files stay."""
        if disk_is_full or not file_transfer.continuable(self.path):
            file_transfer.remove_leftovers(self.path)
        if not self.partial_files() and not any(self.holds(file) for file in files):
            shutil.rmtree(self.path, ignore_errors=True)

    def _drop_links(self) -> None:
        """Remove links that someone else may have placed there, so that none is written through."""
        if self.path.is_symlink():
            self.path.unlink()
        for at, folders, names in os.walk(self.path):
            for path in (Path(at) / name for name in (*folders, *names)):
                if path.is_symlink():
                    path.unlink()

    def partial_files(self) -> list[Path]:
        """Return the partial files, still growing or left by an interrupted transfer."""
        return list((self.path / ".cache").rglob("*.incomplete"))

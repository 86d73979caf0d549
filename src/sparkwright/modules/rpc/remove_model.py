from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.errors import Exit, Failed
from sparkwright.host.models import model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg
from sparkwright.visible import count


class RemoveModel(StateModule["RemoveModel.Args", Manifest]):
    """A model's files are gone from this host: those that sparkwright proved there, and what transfers left.

    Files of others in the same folder stay, and are counted; so does what a link in it leads to elsewhere. A folder that any
    container mounts, running or not, is refused: the previous server needs its model to be restored.

    Returns: dir, freed_bytes, left (files of others that are still there).
    """

    @dataclass(frozen=True)
    class Args:
        dir: str = arg("the folder; ~ is the user's home")

    def read(self, args: Args, context: Context) -> Manifest:
        manifest = Manifest.of(context.state, context.machine.expand(args.dir))
        here = (
            model_folder for model_folder in model_folders.found(context) if model_folder.dir == str(manifest.folder)
        )
        users = [user for model_folder in here for user in model_folder.used_by]
        if users:
            error = Failed(f"{manifest.folder} is in use by {', '.join(users)}.", fix="Remove the container first.")
            error.exit = Exit.REFUSED
            raise error
        return manifest

    def differences(self, args: Args, found: Manifest) -> list[Change]:
        there = [path for path in model_folders.own_files(found) if path.exists()]
        size = model_folders.on_disk(found)
        holds = f"{count(len(there), 'file')}, {units.size(size)}"
        return [Change(str(found.folder), holds, None)] if there or size else []

    def describe(self, args: Args, found: Manifest) -> dict[str, Any]:
        return {"dir": str(found.folder), "freed_bytes": 0, "left": 0}

    def act(self, args: Args, found: Manifest, changes: list[Change], context: Context) -> dict[str, Any]:
        freed = model_folders.on_disk(found)
        for part in model_folders.kept_by_transfers(found.folder):
            shutil.rmtree(part, ignore_errors=True)
        for path in model_folders.own_files(found):
            path.unlink(missing_ok=True)
        for folder in (*sorted(filter(Path.is_dir, found.folder.rglob("*")), reverse=True), found.folder):
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()
        found.forget()
        left = sum(1 for path in found.folder.rglob("*") if path.is_file()) if found.folder.exists() else 0
        others = f"; {count(left, 'other file')} kept" if left else ""
        return {"freed_bytes": freed, "left": left, "msg": f"{units.size(freed)} freed{others}"}

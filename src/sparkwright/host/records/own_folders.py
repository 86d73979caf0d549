"""List, measure and remove sparkwright's own folders on a host.

~/.local/share/sparkwright     runtime/  run/NAME.sh  compile-caches/  trash/
~/.local/state/sparkwright     runs/  incidents/  server_keys/  recipe_files/  verified.json  lock ...
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers
from sparkwright.host.module import Context
from sparkwright.host.records import server_keys
from sparkwright.host.state import StateFolder
from sparkwright.trust import private
from sparkwright.trust.model_files import RECIPE_FILES_FOLDER

SHARE_FOLDER = ".local/share/sparkwright"
#: text in a comment of each script that sparkwright writes; scripts without it are never removed
OWN_FILE_MARK = "Written by sparkwright"
#: maximum number of files to count in a folder, because a container may have created any number
MAX_ENTRIES = 500_000
#: folders that a gateway mounts, below the state folder (host/gateway/gateway_folders.py)
GATEWAY_FOLDERS = ("gateway/files", "gateway/sockets", "gateway/config")
#: reason to keep a file or folder while Docker cannot be queried
UNKNOWN_USE = "Docker does not answer: a container may have it mounted"


def share_and_state(home: Path) -> tuple[Path, Path]:
    """Return the paths of sparkwright's share folder and state folder, which may not exist."""
    return home / SHARE_FOLDER, StateFolder.in_home(home).path


def disk_bytes(path: Path) -> int:
    """Return the disk usage of a folder or file in bytes; a lower bound if the folder has MAX_ENTRIES files or more.

    Links are not followed, and unreadable folders are skipped.
    """
    return _measure(path)[0]


def find_disk_bytes(path: Path) -> int | None:
    """Return the same as `disk_bytes`, but None, for unknown, if the folder has MAX_ENTRIES files or more."""
    total, count = _measure(path)
    return total if count < MAX_ENTRIES else None


def _measure(path: Path) -> tuple[int, int]:
    """Return the disk usage and the number of the files that were counted, at most MAX_ENTRIES."""
    total = count = 0
    with contextlib.suppress(OSError):
        total = path.lstat().st_blocks * 512
    pending = [path] if path.is_dir() and not path.is_symlink() else []
    while pending and count < MAX_ENTRIES:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                if count >= MAX_ENTRIES:
                    break
    return total, count


def iter_mounts(context: Context, *, exclude: Collection[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield (container's name, path on the host) for each mount of all containers, including stopped ones.

    Args:
        exclude: names of containers to leave out.

    Raises:
        Failed: Docker cannot be queried.
    """
    api = context.docker().api
    for container in api.containers(all=True):
        name = containers.name_of(container)
        for mount in (api.inspect_container(container["Id"]).get("Mounts") or ()) if name not in exclude else ():
            if mount.get("Source"):
                yield name, Path(mount["Source"])


def files_in_use(context: Context, *, exclude: Collection[str] = ()) -> dict[Path, str]:
    """Return the key files, recipe files and gateway folders that a container has mounted, with the reason to keep them.

    Returns all of them if Docker cannot be queried.

    Args:
        exclude: names of containers whose mounts are ignored.
    """
    state = share_and_state(context.machine.home)[1]
    gateway = (state / folder for folder in GATEWAY_FOLDERS if (state / folder).is_dir())
    candidates = (*(state / server_keys.FOLDER).glob("*-*.*"), *(state / RECIPE_FILES_FOLDER).glob("*"), *gateway)
    files = [path for path in candidates if not path.is_symlink()]
    if not files:
        return {}
    try:
        names_by_source = {source: name for name, source in iter_mounts(context, exclude=exclude)}
    except SparkwrightError:
        return dict.fromkeys(files, UNKNOWN_USE)
    return {path: f"mounted by {names_by_source[path]}" for path in files if path in names_by_source}


def remove_all(home: Path, kept_paths: Collection[Path] = ()) -> None:
    """Remove the share folder and the state folder, except `kept_paths`, and then their empty parents.

    Each folder is renamed first, so that a process that starts during the removal creates a new one instead of reading a partly
    removed one.
    """
    for folder in share_and_state(home):
        if not folder.exists():
            continue
        renamed_folder = folder.with_name(f".{folder.name}.removed.{os.urandom(6).hex()}")
        folder.rename(renamed_folder)
        for path in kept_paths:
            if path.is_relative_to(folder):
                private.create_folder(folder)
                private.create_folder(path.parent)
                # not copied: a container has this inode mounted
                (renamed_folder / path.relative_to(folder)).rename(path)
        shutil.rmtree(renamed_folder, ignore_errors=True)
        remove_empty_folders(folder.parent, home)


def remove_empty_folders(folder: Path, home: Path) -> None:
    """Remove a folder below the home if it is empty or missing, then its parents as long as they are empty."""
    while folder != home and folder.is_relative_to(home):
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent

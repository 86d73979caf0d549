"""The model files of the verified server, kept while another revision replaces them.

MODEL_DIR/.before/    hard links: they take space only once the original is replaced, and need no second download
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.host.state import write_atomically
from sparkwright.trust import bounds
from sparkwright.trust.model_files import why_not_a_model_file
from sparkwright.trust.names import place

FOLDER = ".before"
ABOUT = ".about.json"


def keep(folder: Path, paths: Iterable[str], commit: str) -> None:
    """Keep these files of a model's folder as they are now. Files that are kept already stay: they are older.

    Args:
        commit: of the revision they belong to.

    Raises:
        OSError: The file system does not support hard links.
    """
    kept, new = place(folder, FOLDER), set(_new(folder))
    if kept.is_symlink():
        kept.unlink()
    kept.mkdir(exist_ok=True)
    for path in paths:
        if (folder / path).is_file() and not (kept / path).exists() and path not in new:
            place(folder, f"{FOLDER}/{path}").parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / path, kept / path)
        elif not (folder / path).exists() and not (kept / path).exists():
            new.add(path)
    about = {"commit": _about(folder).get("commit") or commit, "new": sorted(new)}
    write_atomically(kept / ABOUT, json.dumps(about).encode(), mode=0o644)


def commit_of(folder: Path) -> str:
    """Return the kept revision; empty if there is none."""
    return str(_about(folder).get("commit", ""))


def restore_kept(folder: Path) -> int:
    """Move every kept file back, and remove those of the other revision. Returns the number of changed files."""
    kept = folder / FOLDER
    if kept.is_symlink():  # its target belongs elsewhere
        kept.unlink()
    changed = 0
    for path in _kept(folder):
        target = place(folder, str(path.relative_to(kept)))
        changed += not (target.exists() and target.samefile(path))
        path.replace(target)
    for name in _new(folder):
        with contextlib.suppress(FileNotFoundError):
            place(folder, name).unlink()
            changed += 1
    forget(folder)
    return changed


def forget(folder: Path) -> None:
    """Remove the kept files: the other revision is verified."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def restore_proved(context: Context, folder: Path) -> int:
    """Do the same as `restore_kept`, and restore the record of the verified files."""
    kept = [str(path.relative_to(folder / FOLDER)) for path in _kept(folder)]
    changed = restore_kept(folder)
    Manifest.of(context.state, folder).restore_kept(kept)
    return changed


def forget_all(context: Context, folder: Path) -> None:
    """Do the same as `forget`, and remove the record of the older files."""
    forget(folder)
    Manifest.of(context.state, folder).forget_kept()


def replaced_folders(context: Context) -> dict[Path, str]:
    """Return the model folders of the last verified state where another revision replaced it, with the kept commits."""
    models = good_states.models_of(good_states.last(context.state))
    folders = [context.machine.expand(model["dir"]) for model in models if model.get("dir")]
    return {folder: commit for folder in folders if (commit := commit_of(folder))}


def _kept(folder: Path) -> list[Path]:
    """Return the kept files; none if the folder is a link, whose target belongs elsewhere."""
    kept = folder / FOLDER
    if kept.is_symlink():
        return []
    return [path for path in kept.rglob("*") if path.is_file() and path != kept / ABOUT]


def _new(folder: Path) -> list[str]:
    """Return the names of files that came with the other revision, validated: anyone with write access may have added some."""
    found = _about(folder).get("new")
    names = found if isinstance(found, list) else []
    return [name for name in names if isinstance(name, str) and not why_not_a_model_file(name)]


def _about(folder: Path) -> dict[str, Any]:
    try:
        found = bounds.parsed((folder / FOLDER / ABOUT).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

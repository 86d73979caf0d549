"""The files of a model that the verified server was started with, kept while another revision takes their place.

MODEL_DIR/.before/    hard links: they take room only once the file beside them is replaced, and need no second download
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
    """Keep these files of a model's folder as they are now. What is kept already stays: it is the older one.

    commit: of the revision they belong to. Raises OSError where the file system knows no hard links.
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
    """The revision that is kept; empty when none is."""
    return str(_about(folder).get("commit", ""))


def restore_kept(folder: Path) -> int:
    """Give every kept file its place again, and drop those that came with the other revision. Returns how many changed."""
    kept = folder / FOLDER
    if kept.is_symlink():  # what it leads to is another's
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
    """The other revision is proved: the kept one may go."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def restore_proved(context: Context, folder: Path) -> int:
    """As `restore_kept`; and what was proved of the files before is known again."""
    kept = [str(path.relative_to(folder / FOLDER)) for path in _kept(folder)]
    changed = restore_kept(folder)
    Manifest.of(context.state, folder).restore_kept(kept)
    return changed


def forget_all(context: Context, folder: Path) -> None:
    """As `forget`; and what was proved of the older files goes too."""
    forget(folder)
    Manifest.of(context.state, folder).forget_kept()


def replaced_folders(context: Context) -> dict[Path, str]:
    """The folders of the last good state's models in which another revision took their place, with the commits that are kept."""
    models = good_states.models_of(good_states.last(context.state))
    folders = [context.machine.expand(model["dir"]) for model in models if model.get("dir")]
    return {folder: commit for folder in folders if (commit := commit_of(folder))}


def _kept(folder: Path) -> list[Path]:
    """The files that are kept. A folder that is a link holds none: what it leads to is another's."""
    kept = folder / FOLDER
    if kept.is_symlink():
        return []
    return [path for path in kept.rglob("*") if path.is_file() and path != kept / ABOUT]


def _new(folder: Path) -> list[str]:
    """The names of files that came with the other revision. Whoever may write in the folder may have put others there."""
    found = _about(folder).get("new")
    names = found if isinstance(found, list) else []
    return [name for name in names if isinstance(name, str) and not why_not_a_model_file(name)]


def _about(folder: Path) -> dict[str, Any]:
    try:
        found = bounds.parsed((folder / FOLDER / ABOUT).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""A hub's information about a model, read up to a limit and validated before use: the lock entry, and config.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright.engines.engine import Files, of
from sparkwright.engines.engine import Name as EngineName
from sparkwright.engines.model import chat_template_tree
from sparkwright.errors import Failed, Refused
from sparkwright.host.models import hub
from sparkwright.host.models.hub import ANSWER_BYTES, CONFIG, Source
from sparkwright.trust import bounds, model_files
from sparkwright.trust.names import COMMIT, matched

_FIX = "Exclude it with `ignore` in the recipe's model, or use another hub (HF_ENDPOINT)."


def entry(source: Source, keeps: Callable[[str], bool]) -> dict[str, Any]:
    """Return the lock entry of a model: its commit and the selected files.

    Each file has its size, and a sha256 (large ones) or git blob id (small ones).

    Args:
        source: its commit may be a branch, a tag or a commit.

    Raises:
        Failed: The answer is malformed.
    """
    address = f"{source.url}/api/models/{source.id}/revision/{quote(source.commit, safe='')}?blobs=true"
    return read(parsed(hub.answer(source, address), source), source, keeps)


def read(found: object, source: Source, keeps: Callable[[str], bool]) -> dict[str, Any]:
    """Return the lock entry from a hub's answer about a model. Pure. Raises Failed for a malformed answer."""
    about = f"the hub's answer about {source.id}"
    if not isinstance(found, Mapping) or not isinstance(found.get("siblings"), list):
        raise Failed(f"{about} has no list of files.", fix=hub.OTHER)
    commit = matched(COMMIT, found.get("sha"), f"the commit in {about}")
    if COMMIT.fullmatch(source.commit) and commit != source.commit:
        raise Failed(f"{about} is of commit {commit}, not of {source.commit}.", fix=hub.OTHER)
    siblings = found["siblings"]
    if len(siblings) > model_files.FILES_AT_MOST:
        raise Failed(f"{about} names {model_files.why_not_together(map(str, range(len(siblings))))}.", fix=hub.OTHER)
    rows = [_row(sibling) for sibling in siblings]
    rows = [row for row in rows if not isinstance(row["path"], str) or keeps(row["path"])]
    files = model_files.checked(rows, about, fix=_FIX)
    return {"commit": commit, "files": sorted(files, key=lambda file: str(file["path"]))}


def config(source: Source, file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's config.json at a commit; empty if it is not a JSON object, or far too long.

    Args:
        file: its row.
    """
    if file["size_bytes"] > bounds.CONFIG_BYTES:
        return {}
    try:
        found = bounds.parsed(hub.answer(source, source.address(CONFIG)))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def chat(source: Source, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of a model's chat template and generation_config.json at a commit; unreadable ones count as unknown.

    Args:
        source: of the pinned commit.
        files: the rows of its lock entry.
    """
    sizes = {file["path"]: file["size_bytes"] for file in files}

    def text_of(path: str) -> str | None:
        if path not in sizes:
            return None
        if sizes[path] > bounds.CONFIG_BYTES:
            return ""
        return hub.answer(source, source.address(path)).decode(errors="replace")

    return chat_template_tree.of_files(text_of)


def _row(sibling: object) -> dict[str, Any]:
    """Return a file in the form of the lock, from the hub's data; missing values are None."""
    entry = sibling if isinstance(sibling, Mapping) else {}
    lfs = entry.get("lfs")
    large = isinstance(lfs, Mapping)
    sha256 = lfs.get("sha256") if isinstance(lfs, Mapping) else None
    return {
        "path": entry.get("rfilename"),
        "size_bytes": entry.get("size"),
        "sha256": sha256,
        "blob_id": None if large else entry.get("blobId"),
    }


def parsed(text: bytes, source: Source) -> object:
    try:
        return bounds.parsed(text)
    except ValueError:
        raise Failed(f"the hub's answer about {source.id} is not JSON.", fix=hub.OTHER) from None


# The chat template and the sampling defaults of a model: from the hub when it is pinned, or from a copy on this host.
#
# They are in small files of their own, or in the header of a GGUF file, depending on the engine. Their author is not trusted:
# reads are limited, and a template is parsed, never rendered (engines/model/chat_template_tree.py).

Rows = Iterable[Mapping[str, Any]]


def of_hub(source: Source, files: list[dict[str, Any]], engine: EngineName, model: str = "") -> dict[str, Any] | None:
    """Return the contents of a model's chat files, see engines.model.chat_template.kept; None if they cannot be read.

    Args:
        source: of the pinned commit.
        files: the rows of its lock entry.
        engine: the engine that will serve it.
        model: the model's file, for an engine that serves single files.
    """
    chooses = of(engine).files
    if chooses is None:
        return chat(source, files)
    size = next((int(row["size_bytes"]) for row in files if row["path"] == model), 0)
    for first_bytes in dict.fromkeys((chooses.BEGINNING_BYTES, min(chooses.HEADER_BYTES, ANSWER_BYTES))):
        try:
            beginning = hub.answer(source, source.address(model), first_bytes=min(first_bytes, size))
        except Failed:  # the hub does not support ranges
            return None
        if found := _in_header(chooses, beginning):
            return found
    return None


def here(folder: Path, paths: Iterable[str], engine: EngineName, model: str = "") -> dict[str, Any] | None:
    """Return the same as `of_hub`, from a copy on this host.

    Args:
        folder: of the copy.
        paths: its files, below the folder.
        engine: the engine that serves it.
        model: the model's file, for an engine that serves single files; "" finds it among the paths.
    """
    chooses, names = of(engine).files, set(paths)
    if chooses is not None:
        model = model or _model_of(chooses, folder, names)
        return _in_header(chooses, _beginning(folder / model, chooses.HEADER_BYTES)) if model else None

    def text_of(path: str) -> str | None:
        if path not in names:
            return None
        try:
            return bounds.bytes_of(folder / path, bounds.CONFIG_BYTES).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    return chat_template_tree.of_files(text_of)


def _in_header(chooses: Files, beginning: bytes) -> dict[str, Any] | None:
    chat = chooses.chat_of(beginning)
    return chat_template_tree.of_gguf(chat.template, chat.sampling) if chat else None


def _beginning(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def _model_of(chooses: Files, folder: Path, paths: set[str]) -> str:
    """Return the model's file among those of a copy; "" if it is ambiguous."""
    rows = [{"path": path, "size_bytes": (folder / path).stat().st_size} for path in paths if (folder / path).is_file()]
    try:
        return chooses.chosen(rows, "").flags.get("model", "")
    except Refused:
        return ""

"""A hub's information about a model, read up to a limit and validated before use: the lock entry, and config.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright.engines.engine import Files, get_engine
from sparkwright.engines.engine import Name as EngineName
from sparkwright.engines.model import chat_template_tree
from sparkwright.errors import Failed, Refused
from sparkwright.host.models import hub
from sparkwright.host.models.hub import CONFIG, MAX_ANSWER_BYTES, Source
from sparkwright.trust import bounds, model_files
from sparkwright.trust.names import COMMIT, require_match

_FIX = "Exclude it with `ignore` in the recipe's model, or use another hub (HF_ENDPOINT)."


def fetch_lock_entry(source: Source, is_selected: Callable[[str], bool]) -> dict[str, Any]:
    """Return the lock entry of a model: its commit and the selected files.

    Each file has its size, and a sha256 (large ones) or git blob id (small ones).

    Args:
        source: its commit may be a branch, a tag or a commit.

    Raises:
        Failed: The answer is malformed.
    """
    address = f"{source.url}/api/models/{source.id}/revision/{quote(source.commit, safe='')}?blobs=true"
    return parse_lock_entry(parse_answer(hub.read_answer(source, address), source), source, is_selected)


def parse_lock_entry(data: object, source: Source, is_selected: Callable[[str], bool]) -> dict[str, Any]:
    """Return the lock entry from a hub's answer about a model. Pure. Raises Failed for a malformed answer."""
    label = f"the hub's answer about {source.id}"
    if not isinstance(data, Mapping) or not isinstance(data.get("siblings"), list):
        raise Failed(f"{label} has no list of files.", fix=hub.OTHER_HUB_FIX)
    commit = require_match(COMMIT, data.get("sha"), f"the commit in {label}")
    if COMMIT.fullmatch(source.commit) and commit != source.commit:
        raise Failed(f"{label} is of commit {commit}, not of {source.commit}.", fix=hub.OTHER_HUB_FIX)
    siblings = data["siblings"]
    if len(siblings) > model_files.MAX_FILES:
        raise Failed(
            f"{label} names {model_files.check_file_set(map(str, range(len(siblings))))}.", fix=hub.OTHER_HUB_FIX
        )
    rows = [_file_row(sibling) for sibling in siblings]
    rows = [row for row in rows if not isinstance(row["path"], str) or is_selected(row["path"])]
    files = model_files.check_files(rows, label, fix=_FIX)
    return {"commit": commit, "files": sorted(files, key=lambda file: str(file["path"]))}


def fetch_config(source: Source, file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's config.json at a commit; empty if it is not a JSON object, or far too long.

    Args:
        file: its row.
    """
    if file["size_bytes"] > bounds.MAX_CONFIG_BYTES:
        return {}
    try:
        data = bounds.parse_bounded_json(hub.read_answer(source, source.address(CONFIG)))
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def fetch_chat_files(source: Source, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of a model's chat template and generation_config.json at a commit; unreadable ones count as unknown.

    Args:
        source: of the pinned commit.
        files: the rows of its lock entry.
    """
    sizes = {file["path"]: file["size_bytes"] for file in files}

    def text_of(path: str) -> str | None:
        if path not in sizes:
            return None
        if sizes[path] > bounds.MAX_CONFIG_BYTES:
            return ""
        return hub.read_answer(source, source.address(path)).decode(errors="replace")

    return chat_template_tree.read_chat_files(text_of)


def _file_row(sibling: object) -> dict[str, Any]:
    """Return a file in the form of the lock, from the hub's data; missing values are None."""
    fields = sibling if isinstance(sibling, Mapping) else {}
    lfs = fields.get("lfs")
    large = isinstance(lfs, Mapping)
    sha256 = lfs.get("sha256") if isinstance(lfs, Mapping) else None
    return {
        "path": fields.get("rfilename"),
        "size_bytes": fields.get("size"),
        "sha256": sha256,
        "blob_id": None if large else fields.get("blobId"),
    }


def parse_answer(text: bytes, source: Source) -> object:
    try:
        return bounds.parse_bounded_json(text)
    except ValueError:
        raise Failed(f"the hub's answer about {source.id} is not JSON.", fix=hub.OTHER_HUB_FIX) from None


# The chat template and the sampling defaults of a model: from the hub when it is pinned, or from a copy on this host.
#
# They are in small files of their own, or in the header of a GGUF file, depending on the engine. Their author is not trusted:
# reads are limited, and a template is parsed, never rendered (engines/model/chat_template_tree.py).

Rows = Iterable[Mapping[str, Any]]


def fetch_chat_settings(
    source: Source, files: list[dict[str, Any]], engine: EngineName, model: str = ""
) -> dict[str, Any] | None:
    """Return the contents of a model's chat files, see engines.model.chat_template.kept; None if they cannot be read.

    Args:
        source: of the pinned commit.
        files: the rows of its lock entry.
        engine: the engine that will serve it.
        model: the model's file, for an engine that serves single files.
    """
    engine_files = get_engine(engine).files
    if engine_files is None:
        return fetch_chat_files(source, files)
    size = next((int(row["size_bytes"]) for row in files if row["path"] == model), 0)
    for first_bytes in dict.fromkeys((engine_files.BEGINNING_BYTES, min(engine_files.HEADER_BYTES, MAX_ANSWER_BYTES))):
        try:
            beginning = hub.read_answer(source, source.address(model), first_bytes=min(first_bytes, size))
        except Failed:  # the hub does not support ranges
            return None
        if settings := _parse_header(engine_files, beginning):
            return settings
    return None


def read_chat_settings(
    folder: Path, paths: Iterable[str], engine: EngineName, model: str = ""
) -> dict[str, Any] | None:
    """Return the same as `fetch_chat_settings`, from a copy on this host.

    Args:
        folder: of the copy.
        paths: its files, below the folder.
        engine: the engine that serves it.
        model: the model's file, for an engine that serves single files; "" finds it among the paths.
    """
    engine_files, names = get_engine(engine).files, set(paths)
    if engine_files is not None:
        model = model or _find_model(engine_files, folder, names)
        return (
            _parse_header(engine_files, _read_beginning(folder / model, engine_files.HEADER_BYTES)) if model else None
        )

    def text_of(path: str) -> str | None:
        if path not in names:
            return None
        try:
            return bounds.read_bytes(folder / path, bounds.MAX_CONFIG_BYTES).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    return chat_template_tree.read_chat_files(text_of)


def _parse_header(engine_files: Files, beginning: bytes) -> dict[str, Any] | None:
    chat = engine_files.chat_of(beginning)
    return chat_template_tree.read_gguf_chat(chat.template, chat.sampling) if chat else None


def _read_beginning(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""


def _find_model(engine_files: Files, folder: Path, paths: set[str]) -> str:
    """Return the model's file among those of a copy; "" if it is ambiguous."""
    rows = [{"path": path, "size_bytes": (folder / path).stat().st_size} for path in paths if (folder / path).is_file()]
    try:
        return engine_files.select_files(rows, "").flags.get("model", "")
    except Refused:
        return ""

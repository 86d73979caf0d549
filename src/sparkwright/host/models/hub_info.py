"""Read and validate a model's metadata, up to a size limit: its lock entry, config.json, chat template and sampling defaults.

Chat template and sampling defaults come from the hub when a model is pinned, or from a copy on this host. They are in small
files, or in the header of a GGUF file, depending on the engine. A template is parsed, never rendered
(engines/model/chat_template_tree.py), because its author is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright.engines.engine import EngineName, Files, get_engine
from sparkwright.engines.model import chat_template_tree
from sparkwright.errors import Failed, Refused
from sparkwright.host.models import hub
from sparkwright.host.models.hub import CONFIG_FILE, MAX_ANSWER_BYTES, Source
from sparkwright.trust import bounds, model_files
from sparkwright.trust.names import COMMIT, require_match

_FIX = "Exclude it with `ignore` in the recipe's model, or use another hub (HF_ENDPOINT)."


def fetch_lock_entry(source: Source, is_selected: Callable[[str], bool]) -> dict[str, Any]:
    """Return the lock entry of a model: the commit, and the selected files with size and hash.

    `source.commit` may be a branch, a tag or a commit. Raises Failed if the response is malformed.
    """
    url = f"{source.url}/api/models/{source.id}/revision/{quote(source.commit, safe='')}?blobs=true"
    return parse_lock_entry(parse_answer(hub.fetch_bytes(source, url), source), source, is_selected)


def parse_lock_entry(data: object, source: Source, is_selected: Callable[[str], bool]) -> dict[str, Any]:
    """Return the lock entry from a hub's response about a model. Raises Failed if the response is malformed."""
    label = f"the hub's response about {source.id}"
    if not isinstance(data, Mapping) or not isinstance(data.get("siblings"), list):
        raise Failed(f"{label} has no list of files.", fix=hub.OTHER_HUB_FIX)
    commit = require_match(COMMIT, data.get("sha"), f"the commit in {label}")
    if COMMIT.fullmatch(source.commit) and commit != source.commit:
        raise Failed(f"{label} is about commit {commit} instead of {source.commit}.", fix=hub.OTHER_HUB_FIX)
    siblings = data["siblings"]
    if len(siblings) > model_files.MAX_FILES:
        count_text = f"{len(siblings)} files; at most {model_files.MAX_FILES} are allowed"
        raise Failed(f"{label} lists {count_text}.", fix=hub.OTHER_HUB_FIX)
    files = [_build_lock_file(sibling) for sibling in siblings]
    selected_files = [file for file in files if not isinstance(file["path"], str) or is_selected(file["path"])]
    selected_files = model_files.check_files(selected_files, label, fix=_FIX)
    return {"commit": commit, "files": sorted(selected_files, key=lambda file: str(file["path"]))}


def fetch_config(source: Source, file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's config.json, given its lock entry; empty if it is not a JSON object or exceeds the size limit."""
    if file["size_bytes"] > bounds.MAX_CONFIG_BYTES:
        return {}
    try:
        data = bounds.parse_bounded_json(hub.fetch_bytes(source, source.file_url(CONFIG_FILE)))
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def fetch_chat_files(source: Source, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings in a model's chat template and generation_config.json, given the files of its lock entry."""
    sizes = {file["path"]: file["size_bytes"] for file in files}

    def read_text(path: str) -> str | None:
        if path not in sizes:
            return None
        if sizes[path] > bounds.MAX_CONFIG_BYTES:
            return ""
        return hub.fetch_bytes(source, source.file_url(path)).decode(errors="replace")

    return chat_template_tree.read_chat_files(read_text)


def _build_lock_file(sibling: object) -> dict[str, Any]:
    """Return a file's lock entry from the hub's data, with the sha256 of a large file (LFS), or else git's blob id."""
    fields = sibling if isinstance(sibling, Mapping) else {}
    lfs = fields.get("lfs")
    is_large = isinstance(lfs, Mapping)
    return {
        "path": fields.get("rfilename"),
        "size_bytes": fields.get("size"),
        "sha256": lfs.get("sha256") if isinstance(lfs, Mapping) else None,
        "blob_id": None if is_large else fields.get("blobId"),
    }


def parse_answer(text: bytes, source: Source) -> object:
    try:
        return bounds.parse_bounded_json(text)
    except ValueError:
        raise Failed(f"the hub's response about {source.id} is not JSON.", fix=hub.OTHER_HUB_FIX) from None


def fetch_chat_settings(
    source: Source, files: list[dict[str, Any]], engine: EngineName, model: str = ""
) -> dict[str, Any] | None:
    """Return a model's chat template and sampling defaults for the lock, or None if they cannot be read.

    Args:
        files: the files of the model's lock entry.
        engine: the engine that will serve the model.
        model: path of the model's file, for an engine that serves single files.
    """
    engine_files = get_engine(engine).files
    if engine_files is None:
        return fetch_chat_files(source, files)
    size_bytes = next((int(file["size_bytes"]) for file in files if file["path"] == model), 0)
    for first_bytes in dict.fromkeys((engine_files.BEGINNING_BYTES, min(engine_files.HEADER_BYTES, MAX_ANSWER_BYTES))):
        try:
            beginning = hub.fetch_bytes(source, source.file_url(model), first_bytes=min(first_bytes, size_bytes))
        except hub.HubDown:
            raise
        except Failed:  # the hub does not support ranges
            return None
        if settings := _parse_header(engine_files, beginning):
            return settings
    return None


def read_chat_settings(
    folder: Path, paths: Iterable[str], engine: EngineName, model: str = ""
) -> dict[str, Any] | None:
    """Return the same as `fetch_chat_settings`, from a copy of the model in a folder on this host.

    Args:
        paths: the model's files, relative to the folder.
        engine: the engine that serves the model.
        model: path of the model's file, for an engine that serves single files; "" to select it from `paths`.
    """
    engine_files, known_paths = get_engine(engine).files, set(paths)
    if engine_files is not None:
        model = model or _find_model_file(engine_files, folder, known_paths)
        if not model:
            return None
        return _parse_header(engine_files, _read_beginning(folder / model, engine_files.HEADER_BYTES))

    def read_text(path: str) -> str | None:
        if path not in known_paths:
            return None
        try:
            return bounds.read_bytes(folder / path, bounds.MAX_CONFIG_BYTES).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    return chat_template_tree.read_chat_files(read_text)


def _parse_header(engine_files: Files, first_bytes: bytes) -> dict[str, Any] | None:
    chat = engine_files.chat_of(first_bytes)
    return chat_template_tree.read_gguf_chat(chat.template, chat.sampling) if chat else None


def _read_beginning(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""


def _find_model_file(engine_files: Files, folder: Path, paths: set[str]) -> str:
    """Return the path of the model's file, or "" if it is ambiguous."""
    files = [
        {"path": path, "size_bytes": (folder / path).stat().st_size} for path in paths if (folder / path).is_file()
    ]
    try:
        return engine_files.select_files(files, "").flags.get("model", "")
    except Refused:
        return ""

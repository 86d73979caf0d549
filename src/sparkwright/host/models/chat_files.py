"""The chat template and the sampling defaults of a model: from the hub when it is pinned, or from a copy on this host.

They are in small files of their own, or in the header of a GGUF file, depending on the engine. Their author is not trusted: reads
are limited, and a template is parsed, never rendered (engines/model/chat_template_tree.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.engines.engine import Name as EngineName
from sparkwright.engines.engine import of
from sparkwright.engines.files import Files
from sparkwright.engines.model import chat_template_tree
from sparkwright.errors import Failed, Refused
from sparkwright.host.models import hub, hub_info
from sparkwright.host.models.bounded_http import ANSWER_BYTES
from sparkwright.host.models.hub import Source
from sparkwright.trust import bounds

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
        return hub_info.chat(source, files)
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

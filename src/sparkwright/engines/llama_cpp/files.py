"""The files of a repository that a GGUF recipe needs: one quantisation with all its shards, the projector, the draft model.

Pure: from names and sizes. Patterns are shell patterns as in `model.file`; they match the whole path or its last part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sparkwright.engines import engine as protocol
from sparkwright.engines.llama_cpp import gguf
from sparkwright.engines.model import adapter
from sparkwright.errors import Refused
from sparkwright.units import GIB
from sparkwright.visible import format_count, join_first

SUFFIX = ".gguf"
NEEDED = "one GGUF file, or its shards"
MAX_SHOWN_CHOICES = 30
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
#: files beside a model in its repository that are not models
_PROJECTOR, _IMPORTANCE_MATRIX = re.compile(r"(^|[-_.])mmproj", re.I), re.compile(r"(^|[-_.])imatrix", re.I)
#: names of draft models and of heads for speculation
_DRAFT = re.compile(r"(^|[-_.])(draft|mtp|eagle\d*)([-_.]|$)", re.I)
#: an architecture's name, as gpt-oss
_ARCHITECTURE_NAME = re.compile(r"[\w.-]{1,64}")
#: the model's shape is in the first few hundred bytes
BEGINNING_BYTES = 1 << 16
HEADER_BYTES = gguf.HEADER_BYTES
#: suffixes of weights in other formats
OTHER_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")


class NoSingleModel(ValueError):
    """The files and the patterns do not lead to a single model; the message says why and what to write."""


@dataclass(frozen=True, slots=True)
class SelectedFiles:
    """The selected files, by path."""

    #: the model's files in order; `--model` gets the first
    model: tuple[str, ...]
    #: the projector; empty for none
    mmproj: str = ""
    #: the draft model; empty for none
    draft: str = ""

    @property
    def served(self) -> str:
        """The file for the command line; llama-server finds the other shards beside it."""
        return self.model[0]

    @property
    def all(self) -> tuple[str, ...]:
        """All files to download and to hash."""
        return (*self.model, *(item for item in (self.mmproj, self.draft) if item))


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """A model in a repository: its files in order, and the number that there should be."""

    name: str
    files: tuple[str, ...]
    count: int
    size: int


def resolve_files(
    sizes: Mapping[str, int], patterns: Sequence[str] = (), *, mmproj: str = "", draft: str = "", repository: str = ""
) -> SelectedFiles:
    """Return the files that match the patterns.

    Args:
        sizes: bytes of each file of the repository.
        patterns: of the model; without any, the only model there is.
        mmproj: pattern of the projector; without it, a projector that a pattern of the model matches.
        draft: pattern of the draft model; without it, a draft that a pattern of the model matches.
        repository: its name, for messages.

    Raises:
        NoSingleModel: the patterns do not lead to a single model.
    """
    where = repository or "the repository"
    files = {name: size for name, size in sizes.items() if name.lower().endswith(SUFFIX)}
    if not files:
        raise NoSingleModel(_describe_missing_gguf(sizes, where))
    candidates = group_models({name: size for name, size in files.items() if _is_model(name)})
    models = [model for model in candidates if not patterns or any(_matches(name, patterns) for name in model.files)]
    if not models and patterns:
        raise NoSingleModel(
            f"{_format_patterns(patterns)} matches no model of {where}, which has {format_models(candidates)}."
        )
    if not models:
        raise NoSingleModel(
            f"{where} has no model among its .gguf files: {join_first(sorted(files), MAX_SHOWN_CHOICES)}."
        )
    if len(models) > 1:
        narrowed = f" that {_format_patterns(patterns)} matches" if patterns else ""
        raise NoSingleModel(
            f"{where} has {len(models)} models{narrowed}: name one of {format_models(models)} as `model.file`."
        )
    return SelectedFiles(_check_shards(models[0], where), *_select_companions(files, patterns, mmproj, draft, where))


def select_files(
    files: Sequence[Mapping[str, Any]], pattern: str, mmproj: str = "", draft: str = "", repository: str = ""
) -> protocol.ChosenFiles:
    """See engine.Files."""
    sizes = {str(file["path"]): int(file["size_bytes"]) for file in files}
    try:
        selection = resolve_files(
            sizes, [pattern] if pattern else [], mmproj=mmproj, draft=draft, repository=repository
        )
    except NoSingleModel as error:
        raise Refused(str(error)) from None
    flags = {"model": selection.served, "mmproj": selection.mmproj, "model-draft": selection.draft}
    rows = tuple(file for file in files if file["path"] in selection.all)
    return protocol.ChosenFiles(rows, {flag: path for flag, path in flags.items() if path})


def config_of(beginning: bytes) -> dict[str, Any] | None:
    """See engine.Files: the numbers that determine the memory, and the name of the architecture."""
    try:
        header = gguf.parse_partial_header(beginning)
    except gguf.NotGguf:
        return None
    values = {key: header.architecture_value(key) for key in gguf.SHAPE_KEYS}
    shape = {f"{header.architecture}.{key}": value for key, value in values.items() if gguf.is_integer(value)}
    return (
        {gguf.ARCHITECTURE_KEY: header.architecture, **shape}
        if _ARCHITECTURE_NAME.fullmatch(header.architecture)
        else None
    )


def adapter_of(beginning: bytes) -> dict[str, Any] | None:
    """See engine.Files. source: gguf 0.19, constants.py: `general.type` and `adapter.type`."""
    try:
        header = gguf.parse_partial_header(beginning)
    except gguf.NotGguf:
        return None
    if header.values.get("general.type") != "adapter" or header.values.get("adapter.type") != "lora":
        return None
    base = header.values.get("general.base_model.0.name")
    return adapter.validate_entry({"architecture": header.architecture, "base": base})


def chat_of(beginning: bytes) -> protocol.EmbeddedChat | None:
    """See engine.Files: template and sampling usually come after the vocabulary."""
    try:
        header = gguf.parse_partial_header(beginning)
    except gguf.NotGguf:
        return None
    return protocol.EmbeddedChat(header.template, header.sampling) if header.complete else None


def group_models(sizes: Mapping[str, int]) -> list[RepositoryModel]:
    """Return the models among these files, each with its shards, the smallest first."""
    grouped: dict[tuple[str, int], list[str]] = {}
    for name in sorted(sizes):
        shard = _SHARD.fullmatch(name)
        grouped.setdefault(
            (shard["stem"], int(shard["count"])) if shard else (name.removesuffix(SUFFIX), 1), []
        ).append(name)
    models = [
        RepositoryModel(stem, tuple(names), count, sum(sizes[item] for item in names))
        for (stem, count), names in grouped.items()
    ]
    return sorted(models, key=lambda model: (model.size, model.name))


def format_models(models: Sequence[RepositoryModel]) -> str:
    """Return the models' patterns with sizes: "*-Q4_K_M.gguf (4.6 GiB), *-Q8_0*.gguf (8.0 GiB, 2 files)"."""
    return join_first([_format_model(model) for model in models], MAX_SHOWN_CHOICES) if models else "none"


def _is_model(name: str) -> bool:
    last = name.rpartition("/")[2]
    return not (_PROJECTOR.search(last) or _IMPORTANCE_MATRIX.search(last) or _DRAFT.search(last.removesuffix(SUFFIX)))


def _check_shards(model: RepositoryModel, where: str) -> tuple[str, ...]:
    numbers = [int(match["number"]) if (match := _SHARD.fullmatch(name)) else 1 for name in model.files]
    missing = sorted(set(range(1, model.count + 1)) - set(numbers)) if len(model.files) <= model.count else []
    if missing or len(model.files) != model.count:
        lacks = f"lacks shard {missing[0]}" if missing else f"has {len(model.files)} files for {model.count} shards"
        raise NoSingleModel(f"{model.name} in {where} {lacks} of {model.count}: it cannot be loaded.")
    return model.files


def _select_companions(
    files: Mapping[str, int], patterns: Sequence[str], mmproj: str, draft: str, where: str
) -> tuple[str, str]:
    companions = ((mmproj, _PROJECTOR, "mmproj"), (draft, _DRAFT, "draft model"))
    return tuple(_select_companion(files, wanted, patterns, kind, what, where) for wanted, kind, what in companions)  # type: ignore[return-value]


def _select_companion(
    files: Mapping[str, int], pattern: str, patterns: Sequence[str], kind: re.Pattern[str], role: str, where: str
) -> str:
    """Return the file that this pattern matches, else the file of its kind that the model's own patterns match."""
    if pattern:
        matches = [name for name in files if _matches(name, [pattern])]
    else:
        matches = [name for name in files if patterns and kind.search(_stem(name)) and _matches(name, patterns)]
    if len(matches) > 1 or (pattern and not matches):
        number = f"{len(matches)} files" if matches else "no file"
        names = f" ({join_first(sorted(matches), MAX_SHOWN_CHOICES)})" if matches else ""
        raise NoSingleModel(
            f"{pattern or _format_patterns(patterns)} matches {number}{names} for the {role} in {where}: name one."
        )
    return matches[0] if matches else ""


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(SUFFIX)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern) for pattern in patterns)


def _describe_missing_gguf(sizes: Mapping[str, int], where: str) -> str:
    suffix = next((end for end in OTHER_WEIGHT_SUFFIXES if any(name.endswith(end) for name in sizes)), "")
    reason = (
        f"its weights are {suffix} files, which llama.cpp cannot read"
        if suffix
        else f"it has {format_count(len(sizes), 'other file')}"
    )
    return (
        f"{where} has no .gguf file: {reason}. Name a repository with GGUF files, usually one whose name ends in -GGUF."
    )


def _format_model(model: RepositoryModel) -> str:
    file_count = f", {model.count} files" if model.count > 1 else ""
    stem = model.name.rpartition("/")[2]
    return f"{stem}{'-*' if model.count > 1 else ''}{SUFFIX} ({model.size / GIB:.1f} GiB{file_count})"


def _format_patterns(patterns: Sequence[str]) -> str:
    return ", ".join(patterns)

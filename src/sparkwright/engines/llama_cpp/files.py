"""llama.cpp's implementation of engines.engine.Files: selects the files of a GGUF recipe from a repository, and reads their headers.

A recipe needs one quantization with all its shards, and optionally a projector and a draft model. Patterns are shell patterns, as in
`model.file`; they match the whole path or its last component.
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
_SHARD_PATTERN = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
#: names of GGUF files that are not models
_PROJECTOR_PATTERN, _IMPORTANCE_MATRIX_PATTERN = (
    re.compile(r"(^|[-_.])mmproj", re.I),
    re.compile(r"(^|[-_.])imatrix", re.I),
)
#: names of draft models and speculation heads
_DRAFT_PATTERN = re.compile(r"(^|[-_.])(draft|mtp|eagle\d*)([-_.]|$)", re.I)
#: valid names of architectures, such as gpt-oss
_ARCHITECTURE_NAME_PATTERN = re.compile(r"[\w.-]{1,64}")
#: number of bytes that `config_of` and `adapter_of` need: the model's shape is in the first few hundred
BEGINNING_BYTES = 1 << 16
HEADER_BYTES = gguf.HEADER_BYTES
#: suffixes of weights in other formats
OTHER_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")


class NoSingleModel(ValueError):
    """The patterns select no model, or several. The message is for the user."""


@dataclass(frozen=True, slots=True)
class SelectedFiles:
    """The paths of a model's files."""

    #: the model's shards, in order
    model: tuple[str, ...]
    #: the projector; empty if none is selected
    mmproj: str = ""
    #: the draft model; empty if none is selected
    draft: str = ""

    @property
    def served_path(self) -> str:
        """The file for the command line: the first shard. llama-server finds the others in the same folder."""
        return self.model[0]

    @property
    def all_paths(self) -> tuple[str, ...]:
        return (*self.model, *(path for path in (self.mmproj, self.draft) if path))


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """A model in a repository."""

    #: path without suffix and shard number
    name: str
    #: paths of the shards, in order
    files: tuple[str, ...]
    #: expected number of shards
    shard_count: int
    size_bytes: int


def resolve_files(
    file_sizes: Mapping[str, int],
    patterns: Sequence[str] = (),
    *,
    mmproj: str = "",
    draft: str = "",
    repository: str = "",
) -> SelectedFiles:
    """Return the files that match the patterns.

    Args:
        file_sizes: bytes by path, for all files of the repository.
        patterns: for the model; may be empty if the repository has only one.
        mmproj: pattern for the projector; if empty, a projector that matches `patterns` is selected.
        draft: pattern for the draft model; if empty, a draft model that matches `patterns` is selected.
        repository: name for messages.

    Raises:
        NoSingleModel: the patterns select no model, or several.
    """
    repository = repository or "the repository"
    files = {name: size for name, size in file_sizes.items() if name.lower().endswith(SUFFIX)}
    if not files:
        raise NoSingleModel(_describe_missing_gguf(file_sizes, repository))
    candidates = group_models({name: size for name, size in files.items() if _is_model(name)})
    models = [model for model in candidates if not patterns or any(_matches(name, patterns) for name in model.files)]
    if not models and patterns:
        raise NoSingleModel(
            f"{_format_patterns(patterns)} matches no model in {repository}, which has {format_models(candidates)}."
        )
    if not models:
        raise NoSingleModel(
            f"{repository} has no model among its .gguf files: {join_first(sorted(files), MAX_SHOWN_CHOICES)}."
        )
    if len(models) > 1:
        matching_clause = f" that match {_format_patterns(patterns)}" if patterns else ""
        raise NoSingleModel(
            f"{repository} has {len(models)} models{matching_clause}: name one of {format_models(models)} as `model.file`."
        )
    return SelectedFiles(
        _check_shards(models[0], repository), *_select_companions(files, patterns, mmproj, draft, repository)
    )


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
    flags = {"model": selection.served_path, "mmproj": selection.mmproj, "model-draft": selection.draft}
    rows = tuple(file for file in files if file["path"] in selection.all_paths)
    return protocol.ChosenFiles(rows, {flag: path for flag, path in flags.items() if path})


def config_of(beginning: bytes) -> dict[str, Any] | None:
    """See engine.Files. Returns the architecture's name, and the sizes that determine the memory."""
    header = _parse_beginning(beginning)
    if header is None or not _ARCHITECTURE_NAME_PATTERN.fullmatch(header.architecture):
        return None
    values = {key: header.architecture_value(key) for key in gguf.SHAPE_KEYS}
    shape = {f"{header.architecture}.{key}": value for key, value in values.items() if gguf.is_integer(value)}
    return {gguf.ARCHITECTURE_KEY: header.architecture, **shape}


def adapter_of(beginning: bytes) -> dict[str, Any] | None:
    """See engine.Files. Source: gguf 0.19, constants.py: `general.type` and `adapter.type`."""
    header = _parse_beginning(beginning)
    if header is None or header.values.get("general.type") != "adapter" or header.values.get("adapter.type") != "lora":
        return None
    base = header.values.get("general.base_model.0.name")
    return adapter.validate_entry({"architecture": header.architecture, "base": base})


def chat_of(beginning: bytes) -> protocol.EmbeddedChat | None:
    """See engine.Files. Returns None for an incomplete header, because the template usually comes after the vocabulary."""
    header = _parse_beginning(beginning)
    return protocol.EmbeddedChat(header.template, header.sampling) if header and header.is_complete else None


def _parse_beginning(beginning: bytes) -> gguf.Header | None:
    try:
        return gguf.parse_header(beginning, partial=True)
    except gguf.NotGguf:
        return None


def group_models(file_sizes: Mapping[str, int]) -> list[RepositoryModel]:
    """Return the models that consist of these files, the smallest first."""
    shards: dict[tuple[str, int], list[str]] = {}
    for name in sorted(file_sizes):
        shard = _SHARD_PATTERN.fullmatch(name)
        key = (shard["stem"], int(shard["count"])) if shard else (name.removesuffix(SUFFIX), 1)
        shards.setdefault(key, []).append(name)
    models = [
        RepositoryModel(stem, tuple(names), count, sum(file_sizes[name] for name in names))
        for (stem, count), names in shards.items()
    ]
    return sorted(models, key=lambda model: (model.size_bytes, model.name))


def format_models(models: Sequence[RepositoryModel]) -> str:
    """Return the models' patterns and sizes as text: "Llama-Q4_K_M.gguf (4.6 GiB), Llama-Q8_0-*.gguf (8.0 GiB, 2 files)"."""
    return join_first([_format_model(model) for model in models], MAX_SHOWN_CHOICES) if models else "none"


def _is_model(name: str) -> bool:
    stem = _stem(name)
    return not (
        _PROJECTOR_PATTERN.search(stem) or _IMPORTANCE_MATRIX_PATTERN.search(stem) or _DRAFT_PATTERN.search(stem)
    )


def _check_shards(model: RepositoryModel, repository: str) -> tuple[str, ...]:
    numbers = [int(match["number"]) if (match := _SHARD_PATTERN.fullmatch(name)) else 1 for name in model.files]
    missing_numbers = (
        sorted(set(range(1, model.shard_count + 1)) - set(numbers)) if len(model.files) <= model.shard_count else []
    )
    if missing_numbers or len(model.files) != model.shard_count:
        files = len(model.files)
        problem = (
            f"lacks shard {missing_numbers[0]} of {model.shard_count}"
            if missing_numbers
            else f"has {files} files for {model.shard_count} shards"
        )
        raise NoSingleModel(f"{model.name} in {repository} {problem}: it cannot be loaded.")
    return model.files


def _select_companions(
    files: Mapping[str, int], patterns: Sequence[str], mmproj: str, draft: str, repository: str
) -> tuple[str, str]:
    """Return the projector and the draft model."""
    return (
        _select_companion(files, mmproj, patterns, _PROJECTOR_PATTERN, "mmproj", repository),
        _select_companion(files, draft, patterns, _DRAFT_PATTERN, "draft model", repository),
    )


def _select_companion(
    files: Mapping[str, int],
    pattern: str,
    patterns: Sequence[str],
    role_pattern: re.Pattern[str],
    role: str,
    repository: str,
) -> str:
    """Return the file that `pattern` matches; without `pattern`, the file that `role_pattern` and the model's patterns match, or ""."""
    if pattern:
        matches = [name for name in files if _matches(name, [pattern])]
    else:
        matches = [name for name in files if patterns and role_pattern.search(_stem(name)) and _matches(name, patterns)]
    if len(matches) > 1 or (pattern and not matches):
        match_count_text = f"{len(matches)} files" if matches else "no file"
        names_text = f" ({join_first(sorted(matches), MAX_SHOWN_CHOICES)})" if matches else ""
        raise NoSingleModel(
            f"{pattern or _format_patterns(patterns)} matches {match_count_text}{names_text} for the {role} in {repository}: name one."
        )
    return matches[0] if matches else ""


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(SUFFIX)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern) for pattern in patterns)


def _describe_missing_gguf(file_sizes: Mapping[str, int], repository: str) -> str:
    suffix = next((suffix for suffix in OTHER_WEIGHT_SUFFIXES if any(name.endswith(suffix) for name in file_sizes)), "")
    reason = (
        f"its weights are {suffix} files, which llama.cpp cannot read"
        if suffix
        else f"it has {format_count(len(file_sizes), 'other file')}"
    )
    return f"{repository} has no .gguf file: {reason}. Name a repository with GGUF files, usually one whose name ends in -GGUF."


def _format_model(model: RepositoryModel) -> str:
    file_count = f", {model.shard_count} files" if model.shard_count > 1 else ""
    stem = model.name.rpartition("/")[2]
    return f"{stem}{'-*' if model.shard_count > 1 else ''}{SUFFIX} ({model.size_bytes / GIB:.1f} GiB{file_count})"


def _format_patterns(patterns: Sequence[str]) -> str:
    return ", ".join(patterns)

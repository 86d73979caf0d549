"""spark.lock, the pinned digests of image tags and commits of model branches: written by this tool, committed by the user."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from sparkwright.engines.model import adapter as adapter_files
from sparkwright.engines.model import chat_template
from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import Strict, build_validator, schema_field, validate
from sparkwright.trust import model_files, names
from sparkwright.trust.image_name import check_image
from sparkwright.trust.names import PLATFORM
from sparkwright.trust.shapes import check_engine_options

FILE_NAME = "spark.lock"
FORMAT_NUMBER = 1
LINE_WIDTH = 160
#: size limit; a lock with a hundred models is 1 MB
MAX_LOCK_BYTES = 16 * 2**20
DIGEST_PATTERN, SHA256_PATTERN, COMMIT_PATTERN = (
    f"^{pattern.pattern}$" for pattern in (names.DIGEST, model_files.SHA256, names.COMMIT)
)


def model_key(model_id: str, revision: str, file: str = "") -> str:
    """Return the key of a model in spark.lock: OWNER/NAME@REVISION, or OWNER/NAME@REVISION:FILE for a single file."""
    return f"{model_id}@{revision}:{file}" if file else f"{model_id}@{revision}"


def _model_key_error(key: str) -> str:
    model_id, at, revision = key.partition("@")
    if not at:
        return "has no revision, e.g. OWNER/NAME@main"
    return model_files.check_model_id(model_id) or model_files.check_revision(revision.partition(":")[0])


FileName = Annotated[str, build_validator(model_files.check_model_file)]
ModelKey = Annotated[str, build_validator(_model_key_error)]
ImageName = Annotated[str, build_validator(check_image)]
Platform = Annotated[str, Field(pattern=f"^{PLATFORM.pattern}$")]


class ManifestEntry(Strict):
    """An image's manifest for one platform."""

    platform: Platform = schema_field("such as linux/arm64")
    digest: str = schema_field("digest of its manifest", pattern=DIGEST_PATTERN)
    config: str = schema_field("digest of its config: its Id on a host with overlay2", pattern=DIGEST_PATTERN)
    size_bytes: int = schema_field("download size of a pull", ge=0)


class ImageEntry(Strict):
    """An image: its tag's digest at the time of pinning."""

    digest: str = schema_field("digest of the index, or of the manifest if there is only one", pattern=DIGEST_PATTERN)
    platforms: list[Platform] = schema_field("such as linux/arm64", default_factory=list)
    engine_version: str | None = schema_field("version reported by the image; null if unknown", None, max_length=80)
    options: Annotated[dict[str, Any] | None, BeforeValidator(check_engine_options)] = schema_field(
        "options of its `vllm serve --help=all`, as differences from a release; null until known", None
    )
    created: str | None = schema_field("time at which the image was created", None, max_length=40)
    size_bytes: int | None = schema_field("download size of a pull, for the platform of the host that queried it", None)
    manifests: list[ManifestEntry] = schema_field("manifests in the registry, by platform", default_factory=list)


class FileEntry(Strict):
    """A file of a model."""

    path: FileName = schema_field("path relative to the model's folder")
    size_bytes: int = schema_field("its size", ge=0, le=model_files.MAX_FILE_BYTES, strict=True)
    sha256: str | None = schema_field("SHA-256 of a large file", None, pattern=SHA256_PATTERN)
    blob_id: str | None = schema_field("git's blob id of a small file", None, pattern=COMMIT_PATTERN)

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        if self.sha256 is None and self.blob_id is None:
            raise ValueError(f"'{self.path}' has neither sha256 nor blob_id; lock the model again.")
        return self


class ModelEntry(Strict):
    """A model: its branch's commit at the time of pinning."""

    commit: str = schema_field("the commit, 40 hex digits", pattern=COMMIT_PATTERN)
    config: dict[str, Any] | None = schema_field(
        "parts of its config.json that determine its kind: layers, sizes of recurrent states, lengths", None
    )
    chat: Annotated[dict[str, Any] | None, BeforeValidator(chat_template.validate_entry)] = schema_field(
        "facts about its chat template and generation_config.json: fields, thinking, sampling; null if not read", None
    )
    adapter: Annotated[dict[str, Any] | None, BeforeValidator(adapter_files.validate_entry)] = schema_field(
        "for a LoRA adapter: base model, rank, sizes of the matrices; null for any other model", None
    )
    files: list[FileEntry] = schema_field("its files, with their hashes", max_length=model_files.MAX_FILES)

    @field_validator("files")
    @classmethod
    def _check_file_set(cls, value: list[FileEntry]) -> list[FileEntry]:
        reason = model_files.check_file_set(file_entry.path for file_entry in value)
        if reason:
            raise ValueError(f"they contain {reason}.")
        return value


class LockFile(Strict):
    """spark.lock: pinned images and models."""

    schema_number: int = Field(FORMAT_NUMBER, alias="schema")
    images: dict[ImageName, ImageEntry] = Field(default_factory=dict)
    models: dict[ModelKey, ModelEntry] = Field(default_factory=dict)


@dataclass(frozen=True)
class Lock:
    """The content of spark.lock. Its entries are plain JSON."""

    #: entries by REPOSITORY:TAG
    images: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: entries by `model_key`
    models: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def image(self, ref: str) -> dict[str, Any] | None:
        """Return the entry of an image, REPOSITORY:TAG, or None if it is not pinned."""
        return self.images.get(ref)

    def model(self, model_id: str, revision: str, file: str = "") -> dict[str, Any] | None:
        """Return the entry of a model, or None if it is not pinned. revision: branch, tag or commit, as in the recipe."""
        return self.models.get(model_key(model_id, revision, file))

    def with_image(self, ref: str, response: Mapping[str, Any]) -> Lock:
        """Return the lock with this image pinned. Raises Refused if the entry is not valid."""
        return replace(self, images={**self.images, ref: build_entry("image", ref, response)})

    def with_model(self, model_id: str, revision: str, response: Mapping[str, Any], file: str = "") -> Lock:
        """Return the lock with this model pinned. Raises Refused if the entry is not valid."""
        key = model_key(model_id, revision, file)
        return replace(self, models={**self.models, key: build_entry("model", key, response)})

    def save(self, project: Path) -> None:
        """Write spark.lock atomically, with sorted entries."""
        header = shipped_files.schema_line("lock", depth=0)
        header += "# Written by sparkwright; commit it. Pinned digests of image tags and commits of model branches.\n"
        images = {ref: _mark_rows(image, "manifests") for ref, image in sorted(self.images.items())}
        models = {key: _mark_rows(_drop_null_keys(model), "files") for key, model in sorted(self.models.items())}
        body = {"schema": FORMAT_NUMBER, "images": images, "models": models}
        text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=LINE_WIDTH)
        write_atomically(project / FILE_NAME, (header + text).encode(), mode=0o644)


def load(project: Path) -> Lock:
    """Read spark.lock, or return an empty Lock if the file is missing. Raises Refused with the line if it is invalid."""
    path = project / FILE_NAME
    if not document.exists(path):
        return Lock()
    text = document.read_text(path, max_bytes=MAX_LOCK_BYTES)
    if conflict_line := document.find_conflict(text):
        where = f"{document.format_path(path)}:{conflict_line}"
        fix = "Take one side with git, then run `invoke lock` to add missing entries; or delete the file and run `invoke lock`."
        raise Refused(document.CONFLICT, where=where, fix=fix)
    source = document.parse(text, path)
    _refuse_other_format(source)
    lock_file = validate(LockFile, source)
    return Lock(
        images={ref: image.model_dump(mode="json") for ref, image in lock_file.images.items()},
        models={key: model.model_dump(mode="json") for key, model in lock_file.models.items()},
    )


def _refuse_other_format(source: document.Document) -> None:
    """Raise Refused for a lock in another format. Called before validation, because that format may have other keys."""
    number = source.data.get("schema", FORMAT_NUMBER) if isinstance(source.data, dict) else FORMAT_NUMBER
    if type(number) is int and number != FORMAT_NUMBER:
        is_newer = number > FORMAT_NUMBER
        problem = "newer than this sparkwright" if is_newer else "unknown to this sparkwright"
        fix = "Upgrade sparkwright here." if is_newer else "Delete the file and run `invoke lock`."
        raise Refused(
            f"lock format {number} is {problem} (format {FORMAT_NUMBER}).", where=source.where("schema"), fix=fix
        )


def build_entry(kind: str, key: str, response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lock's entry for a response from a registry (kind "image") or a hub (kind "model").

    Raises Refused if the response is invalid.
    """
    kinds: dict[str, type[Strict]] = {"image": ImageEntry, "model": ModelEntry}
    entry_model = kinds[kind]
    return validate(entry_model, document.Document(Path(key), _select_known_fields(entry_model, response))).model_dump(
        mode="json"
    )


def _select_known_fields(model: type[Strict], response: Mapping[str, Any]) -> dict[str, Any]:
    """Drop unknown fields of a response and its rows, which a newer host may report."""
    models_by_field: dict[str, type[Strict]] = {"files": FileEntry, "manifests": ManifestEntry}
    return {
        name: [_select_known_fields(models_by_field[name], row) if isinstance(row, Mapping) else row for row in value]
        if name in models_by_field and isinstance(value, list)
        else value
        for name, value in response.items()
        if name in model.model_fields
    }


class _Row(dict[str, Any]):
    """A file of a model, or a manifest of an image. Written on one line to keep diffs short."""


def _drop_null_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's entry without `chat` and `adapter` if they are null, as older locks lack these keys."""
    return {key: value for key, value in entry.items() if key not in ("chat", "adapter") or value is not None}


def _mark_rows(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: [_Row(row) for row in value] if key == name else value for key, value in entry.items()}


class _Dumper(yaml.SafeDumper):
    """Writes lists of plain values in flow style, wrapped at LINE_WIDTH, and every row on a single line."""

    best_width: int

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if re.fullmatch(DIGEST_PATTERN, scalar):  # unquoted, as in earlier locks; the colon does not need quotes
            analysis.allow_flow_plain = True
        return analysis

    def expect_flow_mapping(self) -> None:
        self.best_width = sys.maxsize
        super().expect_flow_mapping()

    def expect_flow_sequence(self) -> None:
        self.best_width = LINE_WIDTH
        super().expect_flow_sequence()

    def expect_block_mapping_key(self, first: bool = False) -> None:
        self.best_width = LINE_WIDTH
        super().expect_block_mapping_key(first)


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    is_plain = not any(isinstance(item, list | dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=is_plain)


def _represent_row(dumper: _Dumper, data: _Row) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(_Row, _represent_row)

"""spark.lock: what a tag and a branch meant when they were pinned. Written by the tool, committed by the user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator

from sparkwright.host.state import write_atomically
from sparkwright.userfiles import document
from sparkwright.userfiles.checked import Strict, check

NAME = "spark.lock"
SCHEMA = 1
#: a hundred models have 1 MB
MOST_BYTES = 16 * 2**20
DIGEST = r"^sha256:[0-9a-f]{64}$"


class ManifestEntry(Strict):
    """An image for one platform."""

    platform: str = Field(description="as linux/arm64")
    digest: str = Field(pattern=DIGEST, description="of its manifest")
    config: str = Field(pattern=DIGEST, description="of its config: the Id it has on a host with overlay2")
    size_bytes: int = Field(ge=0, description="what a pull downloads")


class ImageEntry(Strict):
    """An image, by the digest its tag had."""

    digest: str = Field(description="of the index, or of the manifest where there is only one", pattern=DIGEST)
    platforms: list[str] = Field(default_factory=list, description="as linux/arm64")
    engine_version: str | None = Field(None, description="of vLLM, as the image says it; null until that is known")
    created: str | None = Field(None, description="when the image was made")
    size_bytes: int | None = Field(None, description="what a pull downloads, for the host that asked")
    manifests: list[ManifestEntry] = Field(default_factory=list, description="by platform, as the registry has them")


class FileEntry(Strict):
    """A file of a model."""

    path: str
    size_bytes: int = Field(ge=0)
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="of a large file")
    blob_id: str | None = Field(None, pattern=r"^[0-9a-f]{40}$", description="git's id, for a small file")


class ModelEntry(Strict):
    """A model, by the commit its branch had."""

    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    config: dict[str, Any] | None = Field(
        None, description="of its config.json, what tells its kind: layers, sizes of recurrent states, lengths"
    )
    files: list[FileEntry]


class LockFile(Strict):
    """spark.lock."""

    schema_number: int = Field(SCHEMA, alias="schema")
    images: dict[str, ImageEntry] = Field(default_factory=dict)
    models: dict[str, ModelEntry] = Field(default_factory=dict)

    @field_validator("schema_number")
    @classmethod
    def _known(cls, value: int) -> int:
        if value != SCHEMA:
            raise ValueError(f"{value} is of another sparkwright; this one reads {SCHEMA}.")
        return value


@dataclass(frozen=True)
class Lock:
    """images: by "repository:tag". models: by "id@revision". Entries are plain JSON."""

    images: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    models: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def image(self, ref: str) -> dict[str, Any] | None:
        """What this tag meant, or None."""
        return self.images.get(ref)

    def model(self, model_id: str, revision: str) -> dict[str, Any] | None:
        """What this branch meant, or None. A revision that is a commit already is its own entry's key."""
        return self.models.get(f"{model_id}@{revision}")

    def with_image(self, ref: str, entry: Mapping[str, Any]) -> Lock:
        """The lock with this image pinned."""
        return replace(self, images={**self.images, ref: _entry(ImageEntry, entry)})

    def with_model(self, model_id: str, revision: str, entry: Mapping[str, Any]) -> Lock:
        """The lock with this model pinned."""
        return replace(self, models={**self.models, f"{model_id}@{revision}": _entry(ModelEntry, entry)})

    def save(self, project: Path) -> None:
        """Write spark.lock in one step, sorted."""
        head = "# Written by sparkwright; commit it. What image tags and model branches meant when they were pinned.\n"
        body = {
            "schema": SCHEMA,
            "images": dict(sorted(self.images.items())),
            "models": dict(sorted(self.models.items())),
        }
        text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=160)
        write_atomically(project / NAME, (head + _one_line_a_file(text)).encode())


def load(project: Path) -> Lock:
    """Read spark.lock; an empty Lock when there is none. Raises Refused with the line when it was broken by hand."""
    path = project / NAME
    if not path.exists():
        return Lock()
    read = document.load(path, most_bytes=MOST_BYTES)
    found = check(LockFile, read, read.data if read.data is not None else {}, at=())
    return Lock(
        images={ref: entry.model_dump(mode="json") for ref, entry in found.images.items()},
        models={key: entry.model_dump(mode="json") for key, entry in found.models.items()},
    )


class _Dumper(yaml.SafeDumper):
    """Lists of plain values in one line."""


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    plain = not any(isinstance(one, list | dict) for one in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _represent_list)


def _entry(model: type[Strict], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Only what belongs into the lock, of all that a module returned."""
    known = {key: value for key, value in entry.items() if key in model.model_fields}
    return model.model_validate(known).model_dump(mode="json")


def _one_line_a_file(text: str) -> str:
    """A model's files and an image's manifests as one line each, so that a diff shows those that changed."""
    for keys in (("path", "size_bytes", "sha256", "blob_id"), ("platform", "digest", "config", "size_bytes")):
        rows = "      ".join(f"{key}: (.*)\n" for key in keys)
        line = ", ".join(f"{key}: \\{n}" for n, key in enumerate(keys, start=2))
        text = re.sub(rf"^(    - ){rows}", rf"\1{{{line}}}\n", text, flags=re.M)
    return text

"""The choice of files from a repository, for an engine that does not serve the whole folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Chosen:
    """The files selected from a repository."""

    #: the files that are needed, as they were passed in
    rows: tuple[Mapping[str, Any], ...]
    #: flags that name the files, the model's among them, each with the path below the model's folder
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Chat:
    """The chat template and the sampling defaults in a model's file."""

    template: str  #: "" for none
    sampling: Mapping[str, float] = field(default_factory=dict)  #: by the names of a request


class Files(Protocol):
    """Selection of files from a repository, and readers of a model's file."""

    @property
    def NEEDED(self) -> str:
        """The kind of file that serves as the model, as "one GGUF file"; shown for a recipe that names none."""

    @property
    def SUFFIX(self) -> str:
        """The suffix of model files."""

    @property
    def BEGINNING_BYTES(self) -> int:
        """The number of bytes at the beginning of a model's file that `config_of` needs."""

    def config_of(self, beginning: bytes) -> dict[str, Any] | None:
        """Return the model's shape from the beginning of its file, as the lock keeps it; None if the file does not hold it."""

    def adapter_of(self, beginning: bytes) -> dict[str, Any] | None:
        """Return the lock's entry about a LoRA adapter from the beginning of its file; None if the file is none."""

    @property
    def HEADER_BYTES(self) -> int:
        """The greatest number of bytes at the beginning of a model's file that `chat_of` needs."""

    def chat_of(self, beginning: bytes) -> Chat | None:
        """Return the chat template and the sampling defaults from the beginning of a model's file; None if it ends before them."""

    def chosen(
        self, files: Sequence[Mapping[str, Any]], pattern: str, mmproj: str = "", draft: str = "", repository: str = ""
    ) -> Chosen:
        """Return the files that match the patterns.

        Args:
            files: rows with path and size_bytes.
            pattern: of the model's file.
            mmproj: pattern of the projector.
            draft: pattern of the draft model.
            repository: its name, for messages.

        Raises:
            Refused: no file matches, or more than one model; the message lists the models with their sizes.
        """

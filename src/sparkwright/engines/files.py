"""Which files of a repository an engine serves from, where that is not the whole folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Chosen:
    """rows: the files that are needed, as they were given. flags: those that name files of them, the model's among them; by flag
    the path below the model's folder."""

    rows: tuple[Mapping[str, Any], ...]
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Chat:
    """The parts of a model's file that decide its chats."""

    template: str  #: "" for none
    sampling: Mapping[str, float] = field(default_factory=dict)  #: by the names of a request


class Files(Protocol):
    """How files are chosen from those of a repository."""

    @property
    def NEEDED(self) -> str:
        """What the model's file is, as "one GGUF file"; for a recipe that names none."""

    @property
    def SUFFIX(self) -> str:
        """How the names of such files end."""

    @property
    def BEGINNING_BYTES(self) -> int:
        """How much of the model's file `config_of` takes."""

    def config_of(self, beginning: bytes) -> dict[str, Any] | None:
        """What tells the model's shape, as the lock keeps it, from the beginning of its file; None where it tells nothing."""

    @property
    def HEADER_BYTES(self) -> int:
        """How much of the model's file holds what `chat_of` reads, at most."""

    def chat_of(self, beginning: bytes) -> Chat | None:
        """The chat template and the sampling defaults in the beginning of a model's file; None where it ends before them."""

    def chosen(
        self, files: Sequence[Mapping[str, Any]], pattern: str, mmproj: str = "", draft: str = "", repository: str = ""
    ) -> Chosen:
        """The files that patterns mean. files: rows with path and size_bytes. repository: its name, for a sentence.

        Raises Refused when a pattern means no file, or more than one model: then with those that there are and their sizes.
        """

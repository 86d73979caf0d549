"""Which files of a repository an engine serves from, where that is not the whole folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Chosen:
    """rows: the files that are needed, as they were given. model: the path of the one that the engine is given, below the model's
    folder. flags: those that name further files of them, by flag the path."""

    rows: tuple[Mapping[str, Any], ...]
    model: str
    flags: Mapping[str, str] = field(default_factory=dict)


class Files(Protocol):
    """How files are chosen from those of a repository."""

    @property
    def NEEDED(self) -> str:
        """What the model's file is, as "one GGUF file"; for a recipe that names none."""

    def chosen(self, files: Sequence[Mapping[str, Any]], pattern: str, mmproj: str = "", draft: str = "") -> Chosen:
        """The files that patterns mean. files: rows with path and size_bytes.

        Raises Refused when a pattern means no file, or more than one model: then with those that there are and their sizes.
        """

"""A YAML file with the line of everything in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from sparkwright import here
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents.compose import NESTED, Composer, Place, Spelled
from sparkwright.trust import bounds
from sparkwright.units import MIB
from sparkwright.visible import one_line

__all__ = ["Document", "Place", "Spelled", "is_file", "load", "parse", "shown", "text_of"]

#: limit of a file; the largest recipe has 5 kB
MOST_BYTES = MIB
SENTENCE_CHARS = 300


@dataclass(frozen=True)
class Document:
    """A YAML file's content, with the line of each value."""

    #: the file
    path: Path
    #: its content
    data: Any
    #: 1-based line of each key and list item, by its place
    lines: dict[Place, int] = field(default_factory=dict)
    #: included files by the place where their content was put in
    grafts: dict[Place, Document] = field(default_factory=dict)

    def where(self, *place: str | int) -> str:
        """Return "file:line" of a place, or of the nearest place around it."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.grafts:
                return self.grafts[place[:end]].where(*place[end:])
            if place[:end] in self.lines:
                return f"{shown(self.path)}:{self.lines[place[:end]]}"
        return shown(self.path)

    def put_in(self, *place: str | int) -> bool:
        """Return True if another file's content was put in at exactly this place."""
        if place in self.grafts:
            return True
        ends = (end for end in range(len(place) - 1, -1, -1) if place[:end] in self.grafts)
        return any(self.grafts[place[:end]].put_in(*place[end:]) for end in ends)

    def paths(self) -> set[Path]:
        """Return its file and all included files."""
        return {self.path}.union(*(part.paths() for part in self.grafts.values()))


def load(path: Path, *, most_bytes: int = MOST_BYTES) -> Document:
    """Read a file. Raises Refused with the line for bad YAML, a key given twice, or a file that is not there."""
    return parse(text_of(path, most_bytes=most_bytes), path)


def text_of(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a user's file. Raises Refused if it is missing, too large, or not UTF-8."""
    try:
        raw = bounds.bytes_of(path, most_bytes)
    except FileNotFoundError:
        raise Refused("no such file.", where=shown(path)) from None
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}.", where=shown(path)) from None
    except bounds.TooMuch as error:
        raise Refused(f"the file {error}.", where=shown(path)) from None
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Refused("not a UTF-8 text file.", where=f"{shown(path)}:{line}") from None


def parse(text: str, path: Path) -> Document:
    """Parse a document. path: for messages only."""
    composer = Composer(shown(path))
    try:
        data = composer.compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        message = " ".join(part for part in (error.context, error.problem) if part)
        if mark and "\t" in _indent(text, mark.line):
            message = "tabs are not allowed for indentation, use spaces"
        if "nesting depth" in message:  # libyaml's own limit, which may be reached before ours
            raise Refused(f"{NESTED}.", where=f"{shown(path)}{line}") from None
        raise Refused(f"not YAML: {one_line(message, at_most=SENTENCE_CHARS)}.", where=f"{shown(path)}{line}") from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise Refused("not YAML: a control character.", where=f"{shown(path)}:{number}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Refused(f"not YAML: {one_line(str(error), at_most=SENTENCE_CHARS)}.", where=shown(path)) from None
    return Document(path, data, composer.lines)


def is_file(path: Path) -> bool:
    """Return True if the file exists; False for a name that no file can have, for which Path.is_file raises."""
    return os.path.isfile(path)  # noqa: PTH113


def files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder by name, except hidden ones. Raises Refused for one that does not end in .yml."""
    found = sorted(
        path for path in folder.glob("*") if path.suffix.lower() in (".yml", ".yaml") and path.name[0] != "."
    )
    for path in found:
        if path.suffix != ".yml":
            _refuse_ending(path)
    return found


def refuse_other_ending(path: Path) -> None:
    """Raise Refused if NAME.yaml exists where NAME.yml is read."""
    other = path.with_suffix(".yaml")
    if other.name[0] != "." and is_file(other):
        _refuse_ending(other)


def _refuse_ending(path: Path) -> None:
    raise Refused("this file is not read: its name must end in .yml.", where=shown(path), fix="Rename it.")


def shown(path: Path) -> str:
    """Return a path as the user would type it in the current folder; of a shipped file its name."""
    try:
        return str(path.relative_to(here.folder()))
    except ValueError:
        return shipped_files.name_of(path) or str(path)


def _indent(text: str, line: int) -> str:
    """Return the indentation of a line, counted from 0."""
    found = next(islice(text.split("\n"), line, None), "")
    return found[: len(found) - len(found.lstrip())]

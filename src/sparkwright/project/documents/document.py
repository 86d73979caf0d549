"""Reads YAML files, with the line number of every value."""

from __future__ import annotations

import copy
import math
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from sparkwright import here
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.trust import bounds
from sparkwright.units import MIB
from sparkwright.visible import one_line

#: keys and list indexes that lead from the top of a document to a value
Place = tuple[str | int, ...]

#: maximum nesting of lists and mappings
MAX_DEPTH = 64
TOO_DEEP = f"lists and mappings are nested more than {MAX_DEPTH} levels deep"
#: maximum number of values; those of an alias count each time that it is used
MAX_VALUES = 250_000
MAX_SHOWN_CHARS = 80

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALAR_TAGS = {
    f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null", "str", "timestamp", "merge", "value")
}
_LIST_TAGS, _MAPPING_TAGS = (None, "!", "tag:yaml.org,2002:seq"), (None, "!", "tag:yaml.org,2002:map")
_RESOLVER: Any = Resolver()
_CONSTRUCTOR: Any = SafeConstructor()
#: maximum size of a file; the largest recipe is 5 kB
MAX_FILE_BYTES = MIB
#: number of parsed texts to keep
CACHE_SIZE = 64
MAX_MESSAGE_CHARS = 300
#: conflict markers of git, Mercurial and patch
_CONFLICT_PATTERN = re.compile(r"^(?:<{7}|={7}|>{7})(?: .{0,200})?$", re.M)
CONFLICT = "unresolved merge conflict."
CONFLICT_FIX = "Keep the lines of one side, and delete the lines with `<<<<<<<`, `=======` and `>>>>>>>`."


class VerbatimFloat(float):
    """A number that keeps its spelling: 0.90 stays 0.90 on a command line."""

    text: str

    def __new__(cls, text: str) -> VerbatimFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


@dataclass
class Composer:
    """Composes the values of one YAML document with their lines, within limits on depth and number of values.

    PyYAML's own composer recurses in C, crashes on deep nesting, and does not limit the values of aliases.
    """

    #: name of the file in messages
    where: str
    #: 1-based line of each key and list item by its place; filled while composing
    lines: dict[Place, int] = field(default_factory=dict)
    _events: list[Any] = field(default_factory=list)
    _anchors: dict[str, int] = field(default_factory=dict)
    #: start events of the collections that are being composed
    _open_indexes: set[int] = field(default_factory=set)
    _values: int = 0

    def compose(self, text: str) -> Any:
        """Return the value of a text with one YAML document; None if it is empty. Raises Refused or yaml.YAMLError."""
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                self._refuse(event, f"{TOO_DEEP}.")
            if len(self._events) > MAX_VALUES:
                self._refuse(event, f"more than {MAX_VALUES:,} values.")
            self._events.append(event)
        start_indexes = [
            index for index, event in enumerate(self._events) if isinstance(event, yaml.DocumentStartEvent)
        ]
        if len(start_indexes) > 1:
            self._refuse(
                self._events[start_indexes[1]], "a second YAML document starts here; a file may have only one."
            )
        return self._compose_value(start_indexes[0] + 1, ())[0] if start_indexes else None

    def _compose_value(self, index: int, place: Place) -> tuple[Any, int]:
        """Return the value that starts at an event, and the index of the event after it."""
        event = self._events[index]
        self.lines.setdefault(place, _line_number(event))
        self._values += 1
        if self._values > MAX_VALUES or len(place) > MAX_DEPTH:
            self._refuse(event, "aliases expand to too many values here; write the values out.")
        if isinstance(event, yaml.AliasEvent):
            return self._compose_alias(event, place), index + 1
        if event.anchor is not None:
            self._anchors[event.anchor] = index
        if isinstance(event, yaml.ScalarEvent):
            return self._parse_scalar(event), index + 1
        self._open_indexes.add(index)
        composed = (
            self._compose_list(index, place)
            if isinstance(event, yaml.SequenceStartEvent)
            else self._compose_mapping(index, place)
        )
        self._open_indexes.discard(index)
        return composed

    def _compose_alias(self, event: Any, place: Place) -> Any:
        """Return the anchored value. It is composed again, so that its parts have lines at this place too."""
        start_index, name = self._anchors.get(event.anchor), one_line(event.anchor, max_chars=MAX_SHOWN_CHARS)
        if start_index is None:
            self._refuse(event, f"no anchor &{name} before this alias.")
        if start_index in self._open_indexes:
            self._refuse(event, f"the alias *{name} refers to itself.")
        return self._compose_value(start_index, place)[0]

    def _compose_list(self, index: int, place: Place) -> tuple[list[Any], int]:
        self._check_tag(self._events[index], _LIST_TAGS)
        items: list[Any] = []
        index += 1
        while not isinstance(self._events[index], yaml.SequenceEndEvent):
            value, index = self._compose_value(index, (*place, len(items)))
            items.append(value)
        return items, index + 1

    def _compose_mapping(self, index: int, place: Place) -> tuple[dict[str, Any], int]:
        self._check_tag(self._events[index], _MAPPING_TAGS)
        mapping: dict[str, Any] = {}
        index += 1
        while not isinstance(self._events[index], yaml.MappingEndEvent):
            event = self._events[index]
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be plain text, not a list, a mapping or an alias.")
            if event.anchor is not None:
                self._anchors[event.anchor] = index
            key = str(event.value)
            if key in mapping:
                self._refuse(event, f"duplicate key `{one_line(key, max_chars=MAX_SHOWN_CHARS)}`.")
            self.lines[(*place, key)] = _line_number(event)
            mapping[key], index = self._compose_value(index + 1, (*place, key))
        return mapping, index + 1

    def _parse_scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag in (None, "!"):
            implicit = event.implicit if tag is None else (False, True)
            tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, implicit)
        if tag not in _SCALAR_TAGS:
            self._refuse_tag(event)
        kind, text = tag.rpartition(":")[2], event.value
        if kind in ("str", "timestamp", "merge", "value"):
            return text  # a date has no type in JSON, so it stays text
        try:
            return {"int": self._parse_int, "float": self._parse_float}.get(kind, _parse_bool_or_null)(event, tag)
        except (ValueError, KeyError):
            self._refuse(event, f"'{one_line(text, max_chars=MAX_SHOWN_CHARS)}' is not a valid {kind}.")

    def _parse_int(self, event: Any, tag: str) -> int:
        number = _CONSTRUCTOR.construct_yaml_int(yaml.ScalarNode(tag, event.value)) if len(event.value) < 100 else None
        if number is None or abs(number) >= 2**63:
            self._refuse(event, "the number is out of range (64 bits); quote it if it is a string.")
        return int(number)

    def _parse_float(self, event: Any, tag: str) -> float:
        try:
            number: float = VerbatimFloat(event.value)
        except ValueError:
            number = _CONSTRUCTOR.construct_yaml_float(yaml.ScalarNode(tag, event.value))
        if not math.isfinite(number):
            self._refuse(event, "the number is not finite; quote it if it is a string.")
        return number

    def _check_tag(self, event: Any, supported: tuple[str | None, ...]) -> None:
        if event.tag not in supported:
            self._refuse_tag(event)

    def _refuse_tag(self, event: Any) -> NoReturn:
        tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
        description = f"the tag {one_line(tag, max_chars=MAX_SHOWN_CHARS)}" if tag.startswith("!!") else "a tag"
        # the value is not shown, because it may be a password
        self._refuse(event, f"{description} is not supported. Quote a value that starts with `!`.")

    def _refuse(self, event: Any, message: str) -> NoReturn:
        raise Refused(message, where=f"{self.where}:{_line_number(event)}")


def _line_number(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _parse_bool_or_null(event: Any, tag: str) -> bool | None:
    return _CONSTRUCTOR.construct_yaml_bool(yaml.ScalarNode(tag, event.value)) if tag.endswith("bool") else None


def find_conflict(text: str) -> int:
    """Return the 1-based line of the first marker of a merge conflict; 0 if there is none."""
    marker = _CONFLICT_PATTERN.search(text)
    return text.count("\n", 0, marker.start()) + 1 if marker else 0


@dataclass(frozen=True)
class Document:
    """A YAML file's content, with the line of each value."""

    path: Path
    data: Any
    #: 1-based line of each key and list item, by its place
    lines: dict[Place, int] = field(default_factory=dict)
    #: included files, by the place of their content in `data`
    included_documents: dict[Place, Document] = field(default_factory=dict)

    def where(self, *place: str | int) -> str:
        """Return "file:line" of a place, or of the nearest enclosing place."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.included_documents:
                return self.included_documents[place[:length]].where(*place[length:])
            if place[:length] in self.lines:
                return f"{format_path(self.path)}:{self.lines[place[:length]]}"
        return format_path(self.path)

    def is_included_at(self, *place: str | int) -> bool:
        """Return True if the value at this place is the whole content of an included file."""
        if place in self.included_documents:
            return True
        lengths = (length for length in range(len(place) - 1, -1, -1) if place[:length] in self.included_documents)
        return any(self.included_documents[place[:length]].is_included_at(*place[length:]) for length in lengths)

    def paths(self) -> set[Path]:
        """Return the paths of the file and all included files."""
        return {self.path}.union(*(included.paths() for included in self.included_documents.values()))


def load(path: Path) -> Document:
    """Read a YAML file. Raises Refused if it is missing, too large, not valid YAML, or has a duplicate key."""
    data, lines = _compose_cached(read_text(path), format_path(path))
    return Document(path, copy.deepcopy(data), lines)


def read_text(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a user's file. Raises Refused if it is missing, too large, or not in UTF-8."""
    try:
        raw = bounds.read_bytes(path, max_bytes)
    except FileNotFoundError:
        problem = "a symbolic link to a file that does not exist." if path.is_symlink() else "no such file."
        raise Refused(problem, where=format_path(path)) from None
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}.", where=format_path(path)) from None
    except bounds.LimitExceeded as error:
        raise Refused(f"the file {error}.", where=format_path(path)) from None
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Refused("not a UTF-8 text file.", where=f"{format_path(path)}:{line}") from None


def parse(text: str, path: Path) -> Document:
    """Parse a YAML text. path: shown in messages; it is not read."""
    return Document(path, *_compose(text, format_path(path)))


@lru_cache(maxsize=CACHE_SIZE)
def _compose_cached(text: str, where: str) -> tuple[Any, dict[Place, int]]:
    """See `_compose`. Cached because a command reads the same files several times."""
    return _compose(text, where)


def _compose(text: str, where: str) -> tuple[Any, dict[Place, int]]:
    """Return the value of a YAML text, and the line of each place."""
    composer = Composer(where)
    try:
        data = composer.compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line_suffix = f":{mark.line + 1}" if mark else ""
        message = " ".join(part for part in (error.context, error.problem) if part)
        if mark and "\t" in _indentation(text, mark.line):
            message = "tabs are not allowed for indentation, use spaces"
        if conflict_line := find_conflict(text):
            raise Refused(CONFLICT, where=f"{where}:{conflict_line}", fix=CONFLICT_FIX) from None
        if "nesting depth" in message:  # libyaml's own limit, which may be lower
            raise Refused(f"{TOO_DEEP}.", where=f"{where}{line_suffix}") from None
        raise Refused(
            f"not YAML: {one_line(message, max_chars=MAX_MESSAGE_CHARS)}.", where=f"{where}{line_suffix}"
        ) from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise Refused("not YAML: it contains a control character.", where=f"{where}:{line_number}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Refused(f"not YAML: {one_line(str(error), max_chars=MAX_MESSAGE_CHARS)}.", where=where) from None
    return data, composer.lines


def is_file(path: Path) -> bool:
    """Return True if the file exists; False even for an invalid name, for which Path.is_file raises."""
    return os.path.isfile(path)  # noqa: PTH113


def exists(path: Path) -> bool:
    """Return True if there is anything at a path: a file, a folder, or a symbolic link, even if it is broken.

    A file of a project is read if this is True, so that an unreadable file is refused instead of being taken for a missing one.
    """
    return os.path.lexists(path)


def list_files(folder: Path) -> list[Path]:
    """Return a folder's YAML files, sorted, without hidden ones. Raises Refused if one does not end in .yml."""
    paths = sorted(
        path for path in folder.glob("*") if path.suffix.lower() in (".yml", ".yaml") and path.name[0] != "."
    )
    for path in paths:
        if path.suffix != ".yml":
            _refuse_suffix(path)
    return paths


def refuse_yaml_suffix(path: Path) -> None:
    """Raise Refused if there is a NAME.yaml for this NAME.yml."""
    other = path.with_suffix(".yaml")
    if other.name[0] != "." and is_file(other):
        _refuse_suffix(other)


def _refuse_suffix(path: Path) -> None:
    raise Refused("this file is not read: its name must end in .yml.", where=format_path(path), fix="Rename it.")


def format_path(path: Path) -> str:
    """Return a path relative to the project's folder if it is inside; for a shipped file, its name."""
    try:
        return str(path.relative_to(here.project_folder()))
    except ValueError:
        return shipped_files.shipped_name(path) or str(path)


def _indentation(text: str, line: int) -> str:
    """Return the indentation of a line. line: counted from 0."""
    line_text = next(islice(text.split("\n"), line, None), "")
    return line_text[: len(line_text) - len(line_text.lstrip())]

"""A YAML file with the line of everything in it."""

from __future__ import annotations

import copy
import math
import os
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

# Compose YAML's events into plain values with their lines, within limits on depth, aliases and number of values.
#
# PyYAML's own composer recurses in C (a crash at some depth), makes a node of every alias's target and reads any number.

Place = tuple[str | int, ...]

#: limits for the nesting of lists and mappings, and for the number of values, those of aliases counted each time
DEPTH = 64
NESTED = f"lists and mappings are nested more than {DEPTH} levels deep"
MOST_VALUES = 250_000
SHOWN_CHARS = 80

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = {
    f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null", "str", "timestamp", "merge", "value")
}
_LISTS, _MAPPINGS = (None, "!", "tag:yaml.org,2002:seq"), (None, "!", "tag:yaml.org,2002:map")


class Spelled(float):
    """A number that keeps its spelling: 0.90 stays 0.90 on a command line."""

    text: str

    def __new__(cls, text: str) -> Spelled:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


@dataclass
class Composer:
    """Composes the values of one YAML document."""

    #: name of the file in messages
    where: str
    #: 1-based line of each key and list item by its place; filled while composing
    lines: dict[Place, int] = field(default_factory=dict)
    _events: list[Any] = field(default_factory=list)
    _anchors: dict[str, int] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _values: int = 0

    def compose(self, text: str) -> Any:
        """Return the value of a text with one document; None if it is empty.

        Raises Refused, and the errors of yaml.
        """
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                self._refuse(event, f"{NESTED}.")
            if len(self._events) > MOST_VALUES:
                self._refuse(event, f"more than {MOST_VALUES:,} values.")
            self._events.append(event)
        begins = [at for at, event in enumerate(self._events) if isinstance(event, yaml.DocumentStartEvent)]
        if len(begins) > 1:
            self._refuse(self._events[begins[1]], "a second YAML document starts here; a file may have only one.")
        return self._value(begins[0] + 1, ())[0] if begins else None

    def _value(self, at: int, place: Place) -> tuple[Any, int]:
        """Return the value whose events begin at an index, and the index of the next value."""
        event = self._events[at]
        self.lines.setdefault(place, _line(event))
        self._values += 1
        if self._values > MOST_VALUES or len(place) > DEPTH:
            self._refuse(event, "its aliases expand to too many values; write them out.")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place), at + 1
        if event.anchor is not None:
            self._anchors[event.anchor] = at
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event), at + 1
        self._open.add(at)
        found = self._list(at, place) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(at, place)
        self._open.discard(at)
        return found

    def _alias(self, event: Any, place: Place) -> Any:
        """Return the anchored value, read again at this place so that it has lines too."""
        begin = self._anchors.get(event.anchor)
        if begin is None:
            self._refuse(event, f"no anchor &{one_line(event.anchor, at_most=SHOWN_CHARS)} before this alias.")
        if begin in self._open:
            self._refuse(event, f"the alias *{one_line(event.anchor, at_most=SHOWN_CHARS)} refers to itself.")
        return self._value(begin, place)[0]

    def _list(self, at: int, place: Place) -> tuple[list[Any], int]:
        self._tagged(self._events[at], _LISTS)
        found: list[Any] = []
        at += 1
        while not isinstance(self._events[at], yaml.SequenceEndEvent):
            value, at = self._value(at, (*place, len(found)))
            found.append(value)
        return found, at + 1

    def _mapping(self, at: int, place: Place) -> tuple[dict[str, Any], int]:
        self._tagged(self._events[at], _MAPPINGS)
        found: dict[str, Any] = {}
        at += 1
        while not isinstance(self._events[at], yaml.MappingEndEvent):
            event = self._events[at]
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be a word, not a list, a mapping or an alias.")
            if event.anchor is not None:
                self._anchors[event.anchor] = at
            key = str(event.value)
            if key in found:
                self._refuse(event, f"`{one_line(key, at_most=SHOWN_CHARS)}` is given twice.")
            self.lines[(*place, key)] = _line(event)
            found[key], at = self._value(at + 1, (*place, key))
        return found, at + 1

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag in (None, "!"):
            implicit = event.implicit if tag is None else (False, True)
            tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, implicit)
        if tag not in _PLAIN:
            self._no_tag(event)
        kind, text = tag.rpartition(":")[2], event.value
        if kind in ("str", "timestamp", "merge", "value"):
            return text  # a date is not JSON: it stays as it is written
        try:
            return {"int": self._int, "float": self._float}.get(kind, _word)(event, tag)
        except (ValueError, KeyError):
            self._refuse(event, f"'{one_line(text, at_most=SHOWN_CHARS)}' is not a valid {kind}.")

    def _int(self, event: Any, tag: str) -> int:
        found = _CONSTRUCTOR.construct_yaml_int(yaml.ScalarNode(tag, event.value)) if len(event.value) < 100 else None
        if found is None or abs(found) >= 2**63:
            self._refuse(event, "the number is out of range (64 bits); quote it if it is a string.")
        return int(found)

    def _float(self, event: Any, tag: str) -> float:
        try:
            found: float = Spelled(event.value)
        except ValueError:
            found = _CONSTRUCTOR.construct_yaml_float(yaml.ScalarNode(tag, event.value))
        if not math.isfinite(found):
            self._refuse(event, "the number is not finite; quote it if it is a string.")
        return found

    def _tagged(self, event: Any, known: tuple[str | None, ...]) -> None:
        if event.tag not in known:
            self._no_tag(event)

    def _no_tag(self, event: Any) -> NoReturn:
        shown = str(event.tag).replace("tag:yaml.org,2002:", "!!")
        known = f"the tag {one_line(shown, at_most=SHOWN_CHARS)}" if shown.startswith("!!") else "a tag"
        self._refuse(event, f"{known} is not supported. Quote a value that starts with `!`.")  # it may be a password

    def _refuse(self, event: Any, sentence: str) -> NoReturn:
        raise Refused(sentence, where=f"{self.where}:{_line(event)}")


_RESOLVER: Any = Resolver()
_CONSTRUCTOR: Any = SafeConstructor()


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _word(event: Any, tag: str) -> bool | None:
    """Return the value of a boolean word (true, yes, off ...), or None for null."""
    return _CONSTRUCTOR.construct_yaml_bool(yaml.ScalarNode(tag, event.value)) if tag.endswith("bool") else None


__all__ = ["Document", "Place", "Spelled", "is_file", "load", "parse", "shown", "text_of"]

#: limit of a file; the largest recipe has 5 kB
MOST_BYTES = MIB
#: parsed texts that are kept
MOST_KEPT = 64
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
    data, lines = _kept(text_of(path, most_bytes=most_bytes), shown(path))
    return Document(path, copy.deepcopy(data), lines)


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
    return Document(path, *_composed(text, shown(path)))


@lru_cache(maxsize=MOST_KEPT)
def _kept(text: str, where: str) -> tuple[Any, dict[Place, int]]:
    """Return `_composed` of a file: a command reads the same files for several ends, and parses each text once."""
    return _composed(text, where)


def _composed(text: str, where: str) -> tuple[Any, dict[Place, int]]:
    """Return the content of a text and its lines."""
    composer = Composer(where)
    try:
        data = composer.compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        message = " ".join(part for part in (error.context, error.problem) if part)
        if mark and "\t" in _indent(text, mark.line):
            message = "tabs are not allowed for indentation, use spaces"
        if "nesting depth" in message:  # libyaml's own limit, which may be reached before ours
            raise Refused(f"{NESTED}.", where=f"{where}{line}") from None
        raise Refused(f"not YAML: {one_line(message, at_most=SENTENCE_CHARS)}.", where=f"{where}{line}") from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise Refused("not YAML: a control character.", where=f"{where}:{number}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Refused(f"not YAML: {one_line(str(error), at_most=SENTENCE_CHARS)}.", where=where) from None
    return data, composer.lines


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

"""A YAML file with the line of everything in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparkwright.errors import Refused

Place = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Spelled(float):
    """A number that remembers how it was written: 0.90 stays 0.90 on a command line."""

    text: str

    def __new__(cls, text: str) -> Spelled:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Document:
    """path: the file. data: its content. lines: 1-based line of each key and list item, by its place.

    grafts: other files whose content was put in at a place.
    """

    path: Path
    data: Any
    lines: dict[Place, int] = field(default_factory=dict)
    grafts: dict[Place, Document] = field(default_factory=dict)

    def where(self, *place: str | int) -> str:
        """ "file:line" of a place, or of the nearest thing around it."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.grafts:
                return self.grafts[place[:end]].where(*place[end:])
            if place[:end] in self.lines:
                return f"{shown(self.path)}:{self.lines[place[:end]]}"
        return shown(self.path)


def load(path: Path) -> Document:
    """Read a file. Raises Refused with the line for bad YAML, a key given twice, or a file that is not there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refused("there is no such file.", where=shown(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"can't be read: {error}.", where=shown(path)) from None
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """A document from its text; path is only for messages."""
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise Refused(f"not YAML: {said}.", where=f"{shown(path)}{line}") from None
    except yaml.YAMLError as error:
        raise Refused(f"not YAML: {error}.", where=shown(path)) from None
    lines: dict[Place, int] = {}
    data = _value(node, (), lines, path) if node is not None else None
    return Document(path, data, lines)


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _value(node: yaml.Node, place: Place, lines: dict[Place, int], path: Path) -> Any:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, place, lines, path)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*place, n), lines, path) for n, item in enumerate(node.value)]
    if node.tag == "tag:yaml.org,2002:float":
        try:
            return Spelled(node.value)
        except ValueError:
            pass
    constructor = yaml.SafeLoader("")
    try:
        return constructor.construct_object(node, deep=True)
    except yaml.YAMLError:  # its words repeat what is written, which may be a password
        where = f"{shown(path)}:{node.start_mark.line + 1}"
        raise Refused("a tag that is not known here.", where=where, fix="Quote a value that begins with `!`.") from None


def _mapping(node: yaml.MappingNode, place: Place, lines: dict[Place, int], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in found:
            raise Refused(f"`{key}` is given twice.", where=f"{shown(path)}:{line}")
        lines[(*place, key)] = line
        found[key] = _value(value_node, (*place, key), lines, path)
    return found

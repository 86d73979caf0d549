"""A project's own playbooks, parts and templates: copied from the shipped ones, compared with them, and merged.

`.ejected/NAME` keeps each file as it was copied, so that later changes of both sides can be told apart (docs/decisions/0059).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host.state import write_atomically
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import nearest
from sparkwright.version import __version__

ORIGINALS = ".ejected"
#: ids of the copies that earlier versions' `init` made, by name; from tools/earlier_copies.py
EARLIER = Path(__file__).parent / "earlier_copies.json"
HASH = 16
_NOTE = re.compile(r"(?:# ejected from sparkwright ([\w.+-]{1,40}), ([0-9a-f]{16})\n|"
                   r"\{# ejected from sparkwright ([\w.+-]{1,40}), ([0-9a-f]{16}) #\})")  # fmt: skip

_INCLUDE = re.compile(r"(?m)\binclude: {0,9}['\"]?([^\s'\"#}]{1,200})")

#: shipped: only in the package; ejected: as it was copied; changed: with the project's changes; copied: by an earlier `init` and
#: not changed since; own: not shipped
State = Literal["shipped", "ejected", "changed", "copied", "own"]


@dataclass(frozen=True, slots=True)
class FileState:
    """A playbook, part or template of a project."""

    name: str
    state: State
    #: version that it was ejected from; empty if that is not recorded
    version: str = ""
    #: True if the shipped file has changed since
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Lines of the original that were replaced."""

    #: first replaced line, from 0, and the line after the last one
    start: int
    end: int
    lines: tuple[str, ...]

    def meets(self, other: Change) -> bool:
        """Return True if two changes replace the same lines, or lines next to each other, in different ways."""
        return self != other and self.start <= other.end and other.start <= self.end


@dataclass(frozen=True, slots=True)
class Comparison:
    """The three texts of an ejected file."""

    name: str
    version: str
    original: str
    own: str
    shipped: str

    @property
    def conflicts(self) -> list[Change]:
        """The project's changes to lines that sparkwright has changed too."""
        theirs = _changes(self.original, self.shipped)
        return [change for change in _changes(self.original, self.own) if any(map(change.meets, theirs))]

    def merged(self) -> str:
        """Return the original with the changes of both sides. There must be no conflicts."""
        lines = self.original.splitlines(keepends=True)
        changes = {*_changes(self.original, self.own), *_changes(self.original, self.shipped)}
        for change in sorted(changes, key=lambda change: change.start, reverse=True):
            lines[change.start : change.end] = change.lines
        return "".join(lines)

    def diff(self, *, own: bool) -> list[str]:
        """Return a unified diff from the original to the project's text, or to the shipped one."""
        after, title = (self.own, f"{self.name}, yours") if own else (self.shipped, f"sparkwright {__version__}")
        lines = difflib.unified_diff(
            self.original.splitlines(), after.splitlines(), f"as ejected from {self.version}", title, lineterm="", n=2
        )
        return list(lines)


def _changes(before: str, after: str) -> list[Change]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        Change(start, end, tuple(new[first:last]))
        for tag, start, end, first, last in matcher.get_opcodes()
        if tag != "equal"
    ]


def named(project: Path, word: str) -> str:
    """Return the name of the shipped file that a word means: `deploy`, `parts/swap`, `client.j2`, or its whole name.

    Raises Refused with the nearest name.
    """
    known = shipped_files.ejectable()
    forms = (word, f"playbooks/{word}.yml", f"playbooks/{word}", f"templates/{word}", f"templates/{word}.j2")
    for name in forms:
        if name in known:
            return name
    raise Refused(
        f"sparkwright ships no playbook, part or template {word!r}.", fix=nearest(word, map(shipped_files.short, known))
    )


def refuse_source(project: Path) -> None:
    """Raise Refused in sparkwright's own checkout, whose playbooks are the shipped ones."""
    if project.resolve() == shipped_files.source().resolve():
        raise Refused(
            "the playbooks and templates in this folder are the shipped ones themselves.", fix="Edit them here."
        )


def eject(project: Path, name: str) -> FileState:
    """Copy a shipped file into the project, with a note of its version and hash. Raises Refused if the project has one."""
    refuse_source(project)
    if (project / name).exists():
        raise Refused(
            f"{name} exists in this project.",
            fix="`playbook.eject --list` shows its state; remove or rename it to start from the shipped one.",
        )
    adopt(project, name, _shipped_text(name))
    return state_of(project, name)


def adopt(project: Path, name: str, text: str) -> None:
    """Write a project's file, and the shipped one of now as its original.

    Args:
        text: the file's text without a note.
    """
    shipped = _shipped_text(name)
    note = f"ejected from sparkwright {__version__}, {hashlib.sha256(shipped.encode()).hexdigest()[:HASH]}"
    _write(project, {f"{ORIGINALS}/{name}": _noted(name, shipped, note), name: _noted(name, text, note)})


def compare(project: Path, name: str) -> Comparison:
    """Return the three texts of an ejected file, without their notes. Raises Refused if its original is not recorded."""
    original = _text(project / ORIGINALS / name)
    if original is None or not (project / name).is_file():
        fix = f"`playbook.eject {shipped_files.short(name)}` copies the shipped one, where the project has none."
        raise Refused(f"{name} was not ejected in this project.", fix=fix)
    note = _NOTE.search(original)
    version = (note[1] or note[3]) if note else "an unknown version"
    own = document.text_of(project / name)
    return Comparison(name, version, _plain(original), _plain(own), _shipped_text(name))


def state_of(project: Path, name: str) -> FileState:
    """Return the state of one file."""
    if not (project / name).is_file():
        return FileState(name, "shipped")
    shipped = (shipped_files.source() / name).is_file()
    if _text(project / ORIGINALS / name) is not None:
        if not shipped:
            return FileState(name, "changed", moved=True)
        texts = compare(project, name)
        state: State = "ejected" if texts.own == texts.original else "changed"
        return FileState(name, state, texts.version, moved=texts.original != texts.shipped)
    if is_copy(project, name):
        return FileState(name, "copied")
    return FileState(name, "changed" if shipped or name in earlier() else "own")


def states(project: Path) -> list[FileState]:
    """Return the state of every playbook, part and template of the package and the project."""
    found = {
        *shipped_files.ejectable(),
        *(n for folder in shipped_files.EJECTED for n in shipped_files.names(project, f"{folder}/**/*")),
    }
    return [state_of(project, name) for name in sorted(found) if not name.rpartition("/")[2].startswith(".")]


@functools.cache
def earlier() -> dict[str, list[str]]:
    """Return the ids of the copies that earlier versions made, by name."""
    found: dict[str, list[str]] = json.loads(EARLIER.read_text())
    return found


def is_copy(project: Path, name: str) -> bool:
    """Return True if a project's file is, byte for byte, what some version's `init` wrote."""
    text = _text(project / name)
    if text is None:
        return False
    raw = text.encode()
    blob = hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()  # git's id of it
    shipped = _text(shipped_files.source() / name)
    return blob[:HASH] in earlier().get(name, ()) or (shipped is not None and raw == shipped.encode())


def copies(project: Path) -> Iterator[tuple[str, str]]:
    """Yield the unchanged copies of earlier versions' `init` in a project, each with the reason to keep it, or an empty text.

    Links, and files below one, are never among them.
    """
    found = [name for name in sorted(_candidates(project)) if is_copy(project, name)]
    needed = _needed(project, found)
    for name in found:
        yield name, _named_by_a_first_line(project, name) if name.startswith("schemas/") else needed.get(name, "")


def _candidates(project: Path) -> Iterator[str]:
    top = project.resolve()
    for name in {*earlier(), *shipped_files.ejectable()}:
        path = project / name
        if path.is_file() and path.resolve() == top / name:
            yield name


def _named_by_a_first_line(project: Path, name: str) -> str:
    for folder in ("hosts", "recipes", "playbooks"):
        for path in sorted((project / folder).rglob("*.yml")):
            first = (_text(path) or "").partition("\n")[0]
            if first.startswith(shipped_files.MARK) and first.endswith(f"../{name}"):
                own = path.relative_to(project).as_posix()
                if folder != "playbooks" or not is_copy(project, own):
                    return f"the first line of {own} names it"
    return ""


def _needed(project: Path, found: Collection[str]) -> dict[str, str]:
    """Return the copies that must stay for a project's own playbooks, each with the reason.

    An own playbook was written for the parts that it includes, at any depth, and the copies that include these parts were written
    for them too: with files of another version they may be refused, or do something else.
    """
    paths = [path.relative_to(project).as_posix() for path in sorted((project / "playbooks").rglob("*.yml"))]
    included = {name: _included(project, name, paths) for name in paths}
    other = {
        name for name in found if name in included and _text(project / name) != _text(shipped_files.source() / name)
    }
    books, why = [name for name in paths if name not in found], dict[str, str]()
    while books:
        book = books.pop()
        for part in included[book] & other - why.keys():
            why[part] = f"{book} includes it, and this version's is another"
            for name in sorted(name for name in other - why.keys() if part in included[name]):
                why[name] = f"it includes {part}, which stays"
                books.append(name)
    return why


def _included(project: Path, book: str, names: Collection[str]) -> set[str]:
    """Return the project's files that one of its playbooks includes, at any depth."""
    left, seen = [book], set[str]()
    while left:
        name = left.pop()
        for part in _INCLUDE.findall(_text(project / name) or ""):
            at = os.path.normpath(f"{name}/../{part}")
            if at in names and at not in seen:
                seen.add(at)
                left.append(at)
    return seen


def _text(path: Path) -> str | None:
    """Return a file's text; None if there is none, or it can't be read as text."""
    try:
        return document.text_of(path)
    except Refused:
        return None


def _shipped_text(name: str) -> str:
    return shipped_files.in_project(document.text_of(shipped_files.source() / name))


def _plain(text: str) -> str:
    """Return a text without its note."""
    return _NOTE.sub("", text, count=1)


def _noted(name: str, text: str, note: str) -> str:
    """Return a text with a note: below the first line of a playbook, before that of a template."""
    if not name.endswith(".yml"):
        return f"{{# {note} #}}{text}"
    first, end, rest = text.partition("\n")
    return f"{first}{end}# {note}\n{rest}"


def _write(project: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        try:
            write_atomically(project / name, text.encode(), mode=0o644)
        except OSError as error:
            raise Failed(
                f"{name} can't be written: {error.strerror}.", fix="Make the project's folder writable."
            ) from None

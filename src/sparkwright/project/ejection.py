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
from sparkwright.project.documents.validation import suggest_name
from sparkwright.version import __version__

ORIGINALS_FOLDER = ".ejected"
#: ids of the copies that earlier versions' `init` made, by name; from tools/earlier_copies.py
EARLIER_COPIES_FILE = Path(__file__).parent / "earlier_copies.json"
HASH_CHARS = 16
_NOTE = re.compile(r"(?:# ejected from sparkwright ([\w.+-]{1,40}), ([0-9a-f]{16})\n|"
                   r"\{# ejected from sparkwright ([\w.+-]{1,40}), ([0-9a-f]{16}) #\})")  # fmt: skip

_INCLUDE = re.compile(r"(?m)\binclude: {0,9}['\"]?([^\s'\"#}]{1,200})")

#: shipped: only in the package; ejected: as it was copied; changed: with the project's changes; copied: by an earlier `init` and
#: not changed since; own: not shipped
StateName = Literal["shipped", "ejected", "changed", "copied", "own"]


@dataclass(frozen=True, slots=True)
class FileState:
    """A playbook, part or template of a project."""

    name: str
    state: StateName
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

    def conflicts_with(self, other: Change) -> bool:
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
        shipped_changes = _diff_changes(self.original, self.shipped)
        return [
            change
            for change in _diff_changes(self.original, self.own)
            if any(map(change.conflicts_with, shipped_changes))
        ]

    def merge(self) -> str:
        """Return the original with the changes of both sides. There must be no conflicts."""
        lines = self.original.splitlines(keepends=True)
        changes = {*_diff_changes(self.original, self.own), *_diff_changes(self.original, self.shipped)}
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


def _diff_changes(before: str, after: str) -> list[Change]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        Change(start, end, tuple(new[first:last]))
        for tag, start, end, first, last in matcher.get_opcodes()
        if tag != "equal"
    ]


def resolve_name(project: Path, word: str) -> str:
    """Return the name of the shipped file that a word means: `deploy`, `parts/swap`, `client.j2`, or its whole name.

    Raises Refused with the nearest name.
    """
    known = shipped_files.list_ejectable()
    candidates = (word, f"playbooks/{word}.yml", f"playbooks/{word}", f"templates/{word}", f"templates/{word}.j2")
    for name in candidates:
        if name in known:
            return name
    raise Refused(
        f"sparkwright ships no playbook, part or template {word!r}.",
        fix=suggest_name(word, map(shipped_files.short_name, known)),
    )


def refuse_own_checkout(project: Path) -> None:
    """Raise Refused in sparkwright's own checkout, whose playbooks are the shipped ones."""
    if project.resolve() == shipped_files.shipped_folder().resolve():
        raise Refused(
            "the playbooks and templates in this folder are the shipped ones themselves.", fix="Edit them here."
        )


def eject(project: Path, name: str) -> FileState:
    """Copy a shipped file into the project, with a note of its version and hash. Raises Refused if the project has one."""
    refuse_own_checkout(project)
    if (project / name).exists():
        raise Refused(
            f"{name} exists in this project.",
            fix="`playbook.eject --list` shows its state; remove or rename it to start from the shipped one.",
        )
    write_ejected(project, name, _read_shipped_text(name))
    return file_state(project, name)


def write_ejected(project: Path, name: str, text: str) -> None:
    """Write a project's file, and the currently shipped one as its original.

    Args:
        text: the file's text without a note.
    """
    shipped = _read_shipped_text(name)
    note = f"ejected from sparkwright {__version__}, {hashlib.sha256(shipped.encode()).hexdigest()[:HASH_CHARS]}"
    _write_files(
        project, {f"{ORIGINALS_FOLDER}/{name}": _add_note(name, shipped, note), name: _add_note(name, text, note)}
    )


def compare(project: Path, name: str) -> Comparison:
    """Return the three texts of an ejected file, without their notes. Raises Refused if its original is not recorded."""
    original = _try_read_text(project / ORIGINALS_FOLDER / name)
    if original is None or not (project / name).is_file():
        fix = f"`playbook.eject {shipped_files.short_name(name)}` copies the shipped one, where the project has none."
        raise Refused(f"{name} was not ejected in this project.", fix=fix)
    note = _NOTE.search(original)
    version = (note[1] or note[3]) if note else "an unknown version"
    own = document.read_text(project / name)
    return Comparison(name, version, _strip_note(original), _strip_note(own), _read_shipped_text(name))


def file_state(project: Path, name: str) -> FileState:
    """Return the state of one file."""
    if not (project / name).is_file():
        return FileState(name, "shipped")
    shipped = (shipped_files.shipped_folder() / name).is_file()
    if _try_read_text(project / ORIGINALS_FOLDER / name) is not None:
        if not shipped:
            return FileState(name, "changed", moved=True)
        texts = compare(project, name)
        state: StateName = "ejected" if texts.own == texts.original else "changed"
        return FileState(name, state, texts.version, moved=texts.original != texts.shipped)
    if is_unchanged_copy(project, name):
        return FileState(name, "copied")
    return FileState(name, "changed" if shipped or name in load_earlier_copies() else "own")


def list_states(project: Path) -> list[FileState]:
    """Return the state of every playbook, part and template of the package and the project."""
    names = {
        *shipped_files.list_ejectable(),
        *(n for folder in shipped_files.EJECTABLE_FOLDERS for n in shipped_files.list_names(project, f"{folder}/**/*")),
    }
    return [file_state(project, name) for name in sorted(names) if not name.rpartition("/")[2].startswith(".")]


@functools.cache
def load_earlier_copies() -> dict[str, list[str]]:
    """Return the ids of the copies that earlier versions made, by name."""
    ids: dict[str, list[str]] = json.loads(EARLIER_COPIES_FILE.read_text())
    return ids


def is_unchanged_copy(project: Path, name: str) -> bool:
    """Return True if a project's file is, byte for byte, what some version's `init` wrote."""
    text = _try_read_text(project / name)
    if text is None:
        return False
    raw = text.encode()
    blob = hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()  # git's id of it
    shipped = _try_read_text(shipped_files.shipped_folder() / name)
    return blob[:HASH_CHARS] in load_earlier_copies().get(name, ()) or (shipped is not None and raw == shipped.encode())


def find_unchanged_copies(project: Path) -> Iterator[tuple[str, str]]:
    """Yield the unchanged copies of earlier versions' `init` in a project, each with the reason to keep it, or an empty text.

    Links, and files below one, are never among them.
    """
    names = [name for name in sorted(_candidate_names(project)) if is_unchanged_copy(project, name)]
    needed = _find_needed_copies(project, names)
    for name in names:
        yield name, _find_schema_reference(project, name) if name.startswith("schemas/") else needed.get(name, "")


def _candidate_names(project: Path) -> Iterator[str]:
    top = project.resolve()
    for name in {*load_earlier_copies(), *shipped_files.list_ejectable()}:
        path = project / name
        if path.is_file() and path.resolve() == top / name:
            yield name


def _find_schema_reference(project: Path, name: str) -> str:
    for folder in ("hosts", "recipes", "playbooks"):
        for path in sorted((project / folder).rglob("*.yml")):
            first_line = (_try_read_text(path) or "").partition("\n")[0]
            if first_line.startswith(shipped_files.SCHEMA_MARK) and first_line.endswith(f"../{name}"):
                own = path.relative_to(project).as_posix()
                if folder != "playbooks" or not is_unchanged_copy(project, own):
                    return f"the first line of {own} names it"
    return ""


def _find_needed_copies(project: Path, names: Collection[str]) -> dict[str, str]:
    """Return the copies that must stay for a project's own playbooks, each with the reason.

    An own playbook was written for the parts that it includes, at any depth, and the copies that include these parts were written
    for them too: with files of another version they may be refused, or do something else.
    """
    paths = [path.relative_to(project).as_posix() for path in sorted((project / "playbooks").rglob("*.yml"))]
    included = {name: _find_includes(project, name, paths) for name in paths}
    differing = {
        name
        for name in names
        if name in included and _try_read_text(project / name) != _try_read_text(shipped_files.shipped_folder() / name)
    }
    queue, reasons = [name for name in paths if name not in names], dict[str, str]()
    while queue:
        book = queue.pop()
        for part in included[book] & differing - reasons.keys():
            reasons[part] = f"{book} includes it, and this version's is another"
            for name in sorted(name for name in differing - reasons.keys() if part in included[name]):
                reasons[name] = f"it includes {part}, which stays"
                queue.append(name)
    return reasons


def _find_includes(project: Path, book: str, names: Collection[str]) -> set[str]:
    """Return the project's files that one of its playbooks includes, at any depth."""
    queue, seen = [book], set[str]()
    while queue:
        name = queue.pop()
        for part in _INCLUDE.findall(_try_read_text(project / name) or ""):
            path = os.path.normpath(f"{name}/../{part}")
            if path in names and path not in seen:
                seen.add(path)
                queue.append(path)
    return seen


def _try_read_text(path: Path) -> str | None:
    """Return a file's text; None if there is none, or it can't be read as text."""
    try:
        return document.read_text(path)
    except Refused:
        return None


def _read_shipped_text(name: str) -> str:
    return shipped_files.to_project_text(document.read_text(shipped_files.shipped_folder() / name))


def _strip_note(text: str) -> str:
    """Return a text without its note."""
    return _NOTE.sub("", text, count=1)


def _add_note(name: str, text: str, note: str) -> str:
    """Return a text with a note: below the first line of a playbook, before that of a template."""
    if not name.endswith(".yml"):
        return f"{{# {note} #}}{text}"
    first, end, rest = text.partition("\n")
    return f"{first}{end}# {note}\n{rest}"


def _write_files(project: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        try:
            write_atomically(project / name, text.encode(), mode=0o644)
        except OSError as error:
            raise Failed(
                f"{name} can't be written: {error.strerror}.", fix="Make the project's folder writable."
            ) from None

"""Creates, compares and merges a project's copies of shipped playbooks, parts and templates.

`.ejected/NAME` keeps the original of each copy for a three-way merge with later versions (docs/decisions/0059).
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

#: git blob ids of the files that `init` of earlier versions copied, by file name; written by tools/earlier_copies.py
EARLIER_COPIES_FILE = Path(__file__).parent / "earlier_copies.json"
HASH_CHARS = 16
_NOTE_PATTERN = re.compile(r"(?:# ejected from sparkwright ([\w.+-]{1,40}), ([0-9a-f]{16})\n|"
                   r"\{# ejected from sparkwright ([\w.+-]{1,40}), ([0-9a-f]{16}) #\})")  # fmt: skip

_INCLUDE_PATTERN = re.compile(r"(?m)\binclude: {0,9}['\"]?([^\s'\"#}]{1,200})")

#: shipped: only in the package; ejected: an unchanged copy; changed: a copy with changes; copied: an unchanged copy that an
#: earlier version's `init` made; own: a file that is not shipped
StateName = Literal["shipped", "ejected", "changed", "copied", "own"]


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a playbook, part or template in a project."""

    name: str
    state: StateName
    #: sparkwright version that it was ejected from; empty if unknown
    version: str = ""
    #: True if the shipped file has changed since it was ejected, or is no longer shipped
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A range of lines of the original, and its replacement."""

    #: index of the first replaced line
    start: int
    #: index after the last replaced line
    end: int
    lines: tuple[str, ...]

    def conflicts_with(self, other: Change) -> bool:
        """Return True if two changes differ and replace overlapping or adjacent lines."""
        return self != other and self.start <= other.end and other.start <= self.end


@dataclass(frozen=True, slots=True)
class Comparison:
    """The three texts of an ejected file: the original, the project's and the currently shipped one."""

    name: str
    version: str
    original: str
    project_text: str
    shipped: str

    @property
    def conflicts(self) -> list[Change]:
        """The project's changes that conflict with changes to the shipped file."""
        shipped_changes = _diff_changes(self.original, self.shipped)
        return [
            change
            for change in _diff_changes(self.original, self.project_text)
            if any(map(change.conflicts_with, shipped_changes))
        ]

    def merge(self) -> str:
        """Return the original with the changes of both sides, if there are no `conflicts`."""
        lines = self.original.splitlines(keepends=True)
        changes = {*_diff_changes(self.original, self.project_text), *_diff_changes(self.original, self.shipped)}
        for change in sorted(changes, key=lambda change: change.start, reverse=True):
            lines[change.start : change.end] = change.lines
        return "".join(lines)

    def diff(self, *, of_project: bool) -> list[str]:
        """Return a unified diff from the original to the project's text if `of_project`, else to the shipped one."""
        new_text, title = (
            (self.project_text, f"{self.name}, yours") if of_project else (self.shipped, f"sparkwright {__version__}")
        )
        lines = difflib.unified_diff(
            self.original.splitlines(),
            new_text.splitlines(),
            f"as ejected from {self.version}",
            title,
            lineterm="",
            n=2,
        )
        return list(lines)


def _diff_changes(old_text: str, new_text: str) -> list[Change]:
    old_lines, new_lines = old_text.splitlines(keepends=True), new_text.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    return [
        Change(start, end, tuple(new_lines[first:last]))
        for tag, start, end, first, last in matcher.get_opcodes()
        if tag != "equal"
    ]


def resolve_name(word: str) -> str:
    """Return the full name of a shipped file from a short one: `deploy`, `parts/swap`, `client.j2`.

    Raises Refused, suggesting the nearest name, if there is no such file.
    """
    ejectable = shipped_files.list_ejectable()
    candidates = (word, f"playbooks/{word}.yml", f"playbooks/{word}", f"templates/{word}", f"templates/{word}.j2")
    for name in candidates:
        if name in ejectable:
            return name
    raise Refused(
        f"sparkwright ships no playbook, part or template {word!r}.",
        fix=suggest_name(word, map(shipped_files.short_name, ejectable)),
    )


def refuse_source_checkout(project: Path) -> None:
    """Raise Refused if the project is a checkout of sparkwright itself, whose playbooks are the shipped ones."""
    if project.resolve() == shipped_files.shipped_folder().resolve():
        raise Refused(
            "the playbooks and templates in this folder are the shipped ones themselves.", fix="Edit them here."
        )


def eject(project: Path, name: str) -> FileState:
    """Copy a shipped file into the project, with a note of its version and hash. Raises Refused if the file exists there."""
    refuse_source_checkout(project)
    if document.exists(project / name):
        raise Refused(
            f"{name} already exists in this project.",
            fix="`playbook.eject --list` shows its state; remove or rename it to start from the shipped file.",
        )
    write_ejected(project, name, _read_shipped_text(name))
    return file_state(project, name)


def write_ejected(project: Path, name: str, text: str) -> None:
    """Write `text` as a project's file, and the currently shipped file as its original, adding the note to both."""
    shipped_text = _read_shipped_text(name)
    note = f"ejected from sparkwright {__version__}, {hashlib.sha256(shipped_text.encode()).hexdigest()[:HASH_CHARS]}"
    _write_files(
        project,
        {
            f"{shipped_files.ORIGINALS_FOLDER}/{name}": _add_note(name, shipped_text, note),
            name: _add_note(name, text, note),
        },
    )


def compare(project: Path, name: str) -> Comparison:
    """Return the three texts of an ejected file, without their notes. Raises Refused if the file or its original is missing."""
    original = _try_read_text(project / shipped_files.ORIGINALS_FOLDER / name)
    if original is None or not document.exists(project / name):
        fix = f"`playbook.eject {shipped_files.short_name(name)}` copies the shipped file into a project that has none."
        raise Refused(f"{name} was not ejected in this project.", fix=fix)
    note = _NOTE_PATTERN.search(original)
    version = (note[1] or note[3]) if note else "an unknown version"
    project_text = document.read_text(project / name)
    return Comparison(name, version, _strip_note(original), _strip_note(project_text), _read_shipped_text(name))


def file_state(project: Path, name: str) -> FileState:
    if not document.exists(project / name):
        return FileState(name, "shipped")
    is_shipped = (shipped_files.shipped_folder() / name).is_file()
    if _try_read_text(project / shipped_files.ORIGINALS_FOLDER / name) is not None:
        if not is_shipped:
            return FileState(name, "changed", is_outdated=True)
        texts = compare(project, name)
        state: StateName = "ejected" if texts.project_text == texts.original else "changed"
        return FileState(name, state, texts.version, is_outdated=texts.original != texts.shipped)
    if is_unchanged_copy(project, name):
        return FileState(name, "copied")
    return FileState(name, "changed" if is_shipped or name in load_earlier_copies() else "own")


def list_states(project: Path) -> list[FileState]:
    """Return the state of every playbook, part and template of the package and the project."""
    names = set(shipped_files.list_ejectable())
    for folder in shipped_files.EJECTABLE_FOLDERS:
        names.update(shipped_files.list_names(project, f"{folder}/**/*"))
    return [file_state(project, name) for name in sorted(names) if not name.rpartition("/")[2].startswith(".")]


@functools.cache
def load_earlier_copies() -> dict[str, list[str]]:
    """Return the git ids in EARLIER_COPIES_FILE, by name."""
    ids: dict[str, list[str]] = json.loads(EARLIER_COPIES_FILE.read_text())
    return ids


def is_unchanged_copy(project: Path, name: str) -> bool:
    """Return True if a project's file is identical to one that any version's `init` wrote."""
    text = _try_read_text(project / name)
    if text is None:
        return False
    raw = text.encode()
    git_id = hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()
    is_earlier_copy = git_id[:HASH_CHARS] in load_earlier_copies().get(name, ())
    return is_earlier_copy or text == _try_read_text(shipped_files.shipped_folder() / name)


def find_unchanged_copies(project: Path) -> Iterator[tuple[str, str]]:
    """Yield the unchanged copies that `init` made in a project, each with the reason to keep it (empty if it can be removed).

    Symbolic links, and files in symlinked folders, are left out.
    """
    names = [name for name in sorted(_candidate_names(project)) if is_unchanged_copy(project, name)]
    reasons_by_name = _find_needed_copies(project, names)
    for name in names:
        yield (
            name,
            _find_schema_reference(project, name) if name.startswith("schemas/") else reasons_by_name.get(name, ""),
        )


def _candidate_names(project: Path) -> Iterator[str]:
    top = project.resolve()
    for name in {*load_earlier_copies(), *shipped_files.list_ejectable()}:
        path = project / name
        if path.is_file() and path.resolve() == top / name:
            yield name


def _find_schema_reference(project: Path, name: str) -> str:
    """Return a message about the project's file that refers to this schema; empty if no file does."""
    for folder in ("hosts", "recipes", "playbooks"):
        for path in sorted((project / folder).rglob("*.yml")):
            first_line = (_try_read_text(path) or "").partition("\n")[0]
            if first_line.startswith(shipped_files.SCHEMA_LINE_PREFIX) and first_line.endswith(f"../{name}"):
                referrer = path.relative_to(project).as_posix()
                if folder != "playbooks" or not is_unchanged_copy(project, referrer):
                    return f"the first line of {referrer} refers to it"
    return ""


def _find_needed_copies(project: Path, names: Collection[str]) -> dict[str, str]:
    """Return the copies that the user's own playbooks need, with the reason for each.

    The user's playbook was written for the copied versions of the parts that it includes, at any depth; with other versions, it
    may fail or behave differently. Copies that include one of these parts are needed for the same reason.
    """
    paths = [path.relative_to(project).as_posix() for path in sorted((project / "playbooks").rglob("*.yml"))]
    included_by_name = {name: _find_includes(project, name, paths) for name in paths}
    differing_names = {
        name
        for name in names
        if name in included_by_name
        and _try_read_text(project / name) != _try_read_text(shipped_files.shipped_folder() / name)
    }
    queue, reasons = [name for name in paths if name not in names], dict[str, str]()
    while queue:
        playbook = queue.pop()
        for part in included_by_name[playbook] & differing_names - reasons.keys():
            reasons[part] = f"{playbook} includes it, and the file that this version ships differs"
            for name in sorted(name for name in differing_names - reasons.keys() if part in included_by_name[name]):
                reasons[name] = f"it includes {part}, which is kept"
                queue.append(name)
    return reasons


def _find_includes(project: Path, playbook: str, names: Collection[str]) -> set[str]:
    """Return the project's files that one of its playbooks includes, at any depth."""
    queue, included = [playbook], set[str]()
    while queue:
        name = queue.pop()
        for part in _INCLUDE_PATTERN.findall(_try_read_text(project / name) or ""):
            path = os.path.normpath(f"{name}/../{part}")
            if path in names and path not in included:
                included.add(path)
                queue.append(path)
    return included


def _try_read_text(path: Path) -> str | None:
    """Return a file's text; None if it is missing or unreadable."""
    try:
        return document.read_text(path)
    except Refused:
        return None


def _read_shipped_text(name: str) -> str:
    return shipped_files.to_project_text(document.read_text(shipped_files.shipped_folder() / name))


def _strip_note(text: str) -> str:
    return _NOTE_PATTERN.sub("", text, count=1)


def _add_note(name: str, text: str, note: str) -> str:
    """Insert a note after the first line of a playbook, or before the first line of a template."""
    if not name.endswith(".yml"):
        return f"{{# {note} #}}{text}"
    first_line, newline, other_lines = text.partition("\n")
    return f"{first_line}{newline}# {note}\n{other_lines}"


def _write_files(project: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        try:
            write_atomically(project / name, text.encode(), mode=0o644)
        except OSError as error:
            raise Failed(f"cannot write {name}: {error.strerror}.", fix="Make the project's folder writable.") from None

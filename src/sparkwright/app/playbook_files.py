"""The `playbook.eject`, `playbook.update` and `playbook.clean` commands, and `lint` for a project's own playbooks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkwright import program
from sparkwright.app.prompts import agreed
from sparkwright.console import grid
from sparkwright.console.out import say, say_json, say_prose
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.project import ejection, shipped_files
from sparkwright.project.ejection import Comparison, FileState
from sparkwright.project.folder import Project
from sparkwright.version import __version__
from sparkwright.visible import count

COLUMNS = grid.columns(("STATE", 0), ("FROM", 1), ("FILE", 0), ("", 0))
COPIES = grid.columns(("STATE", 0), ("FILE", 0), ("WHY", 0))
#: lines of a difference that lint shows; `playbook.update NAME --check` shows all
MOST_LINES = 60
MOVED = "the shipped one has changed since"
COPY = "unchanged since `init` copied it"


def list_files(*, json: bool) -> Exit:
    """Print the state of every playbook, part and template."""
    rows = ejection.states(Project.here().root)
    for row in rows if json else ():
        say_json(_json(row))
    if not json:
        grid.show_plain_table(COLUMNS, [(row.state, row.version, row.name, MOVED if row.moved else "") for row in rows])
    return Exit.OK


def eject(word: str, *, json: bool) -> Exit:
    """Copy one shipped file into the project."""
    root = Project.here().root
    row = ejection.eject(root, ejection.named(root, word))
    if json:
        say_json(_json(row))
    else:
        say_prose(f"{row.name}: copied from sparkwright {row.version}; commands of this project use it from now on.")
        say(f"{ejection.ORIGINALS}/ keeps it as it was copied: commit both.")
    return Exit.OK


def update(word: str, *, mine: bool, check: bool, json: bool) -> Exit:
    """Merge the changes of the shipped file since it was ejected. Raises Refused if both sides changed the same lines."""
    root = Project.here().root
    ejection.refuse_source(root)
    name = ejection.named(root, word)
    texts = ejection.compare(root, name)
    moved = texts.original != texts.shipped
    if not json and not moved:
        say(f"{name} is based on the shipped one already.")
    if not json and moved:
        show(texts, most=None)
    if moved and not check:
        if texts.conflicts and not mine:
            raise Refused(
                f"{name} and the shipped one changed the same lines.", where=_lines(texts), fix=_conflicting(name)
            )
        ejection.adopt(root, name, texts.own if mine else texts.merged())
    if json:
        say_json(_json(ejection.state_of(root, name)))
    elif moved and not check:
        how = "yours was kept" if mine else "the changes were merged"
        say_prose(f"{name}: {how}; it is based on sparkwright {__version__} now.")
    return Exit.CHANGES if moved and check else Exit.OK


def clean(*, check: bool, yes: bool, json: bool) -> Exit:
    """Show the unchanged copies that an earlier version's `init` made, ask for confirmation, and remove them."""
    root = Project.here().root
    ejection.refuse_source(root)
    found = list(ejection.copies(root))
    going = [name for name, kept in found if not kept]
    if not json:
        _show_copies(root, found)
    removed = bool(going) and not check and agreed(f"Remove {count(len(going), 'file')}?", yes=yes)
    if removed:
        _remove(root, going)
    for name, kept in found if json else ():
        say_json({"file": name, "kept": kept, "removed": removed and not kept})
    if removed and not json:
        then = f"`{program.name()} plan --host all` shows what that changes"
        say_prose(f"{count(len(going), 'file')} removed: commands use the shipped ones. {then}.")
    return Exit.CHANGES if going and not removed else Exit.OK


def _show_copies(root: Path, found: Sequence[tuple[str, str]]) -> None:
    rows = [
        (
            "keep" if kept else "remove",
            name,
            kept or (COPY if _is_shipped(name) else f"{COPY}; this version ships none"),
        )
        for name, kept in found
    ]
    grid.show_plain_table(COPIES, rows)
    changed = [row.name for row in ejection.states(root) if row.state == "changed" and not row.version]
    for name in changed:
        say(f"keep    {name}  changed in this project")
    removing = sum(not kept for _, kept in found)
    say(f"{count(removing, 'file')} to remove." if removing else "No copies to remove.")


def _remove(root: Path, names: Sequence[str]) -> None:
    for name in names:
        try:
            (root / name).unlink(missing_ok=True)
        except OSError as error:
            fix = "Make its folder writable, and repeat the command."
            raise Failed(f"{name} can't be removed: {error.strerror}.", fix=fix) from None
    folders = {parent for name in names for parent in (root / name).parents if parent.is_relative_to(root)} - {root}
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        if folder != root / "playbooks" or (root / "recipes").is_dir():  # one of both makes it a project
            with contextlib.suppress(OSError):  # it holds other files
                folder.rmdir()


def findings(root: Path) -> list[dict[str, Any]]:
    """Return the project's files whose shipped originals have changed since, with both differences, for `lint --json`."""
    found = []
    for row in ejection.states(root):
        if row.moved:
            texts = ejection.compare(root, row.name) if _is_shipped(row.name) else None
            found.append({**_json(row), **_differences(texts)})
    return found


def _differences(texts: Comparison | None) -> dict[str, Any]:
    if texts is None:
        return {"shipped_changes": [], "own_changes": [], "conflicts": []}
    spans = [{"start": change.start + 1, "end": max(change.end, change.start + 1)} for change in texts.conflicts]
    return {"shipped_changes": texts.diff(own=False), "own_changes": texts.diff(own=True), "conflicts": spans}


def lint(root: Path) -> None:
    """Print the findings about the project's own files: changed originals, and copies that hide later versions."""
    if root.resolve() == shipped_files.source().resolve():
        return
    rows = ejection.states(root)
    for row in rows:
        if row.moved and _is_shipped(row.name):
            texts = ejection.compare(root, row.name)
            say_prose(f"{row.name}: {MOVED} sparkwright {row.version}, from which it was ejected.")
            show(texts, most=MOST_LINES)
            say_prose(f"  {_conflicting(row.name) if texts.conflicts else _mergeable(row.name)}")
        elif row.moved:
            say_prose(f"{row.name}: ejected from sparkwright, which ships none any more; nothing shipped uses it.")
    copied = [row for row in rows if row.state == "copied"]
    if copied:
        copies = "1 unchanged copy" if len(copied) == 1 else f"{len(copied)} unchanged copies"
        hint = f"`{program.name()} playbook.clean --check` shows what may go"
        say_prose(f"{copies} of playbooks and templates, made by an earlier `init`, hide this version's: {hint}.")


def show(texts: Comparison, *, most: int | None) -> None:
    """Print both differences from the original."""
    for own in (False, True):
        lines = texts.diff(own=own)
        if not lines:
            say(f"  yours is unchanged since it was ejected from {texts.version}.")
        for line in lines[:most]:
            say(f"  {line}")
        if most is not None and len(lines) > most:
            more = f"`{program.name()} playbook.update {shipped_files.short(texts.name)} --check` shows all"
            say(f"  … {count(len(lines) - most, 'more line')}: {more}.")


def _is_shipped(name: str) -> bool:
    return (shipped_files.source() / name).is_file()


def _lines(texts: Comparison) -> str:
    """Return "file:line" of the first conflict, in the project's file."""
    own = texts.own.splitlines()
    first = texts.conflicts[0]
    line = (first.lines or ("",))[0].rstrip("\n")
    number = own.index(line) + 1 if line in own else first.start + 1
    return f"{texts.name}:{number + (1 if texts.name.endswith('.yml') else 0)}"


def _mergeable(name: str) -> str:
    return f"`{program.name()} playbook.update {shipped_files.short(name)}` takes its changes over; yours stay."


def _conflicting(name: str) -> str:
    command = f"{program.name()} playbook.update {shipped_files.short(name)}"
    return f"Both changed the same lines: edit yours as it should be, then `{command} --mine`."


def _json(row: FileState) -> dict[str, Any]:
    return {"file": row.name, **{key: value for key, value in asdict(row).items() if key != "name"}}

"""The `playbook.eject`, `playbook.update` and `playbook.clean` commands, and `lint` for a project's own playbooks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkwright import program
from sparkwright.app.prompts import confirm
from sparkwright.console import grid
from sparkwright.console.command_output import print_json_line, print_prose, print_text
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.project import ejection, shipped_files
from sparkwright.project.documents import document
from sparkwright.project.ejection import Comparison, FileState
from sparkwright.project.folder import Project
from sparkwright.version import __version__
from sparkwright.visible import format_count

FILE_COLUMNS = grid.columns(("STATE", 0), ("FROM", 1), ("FILE", 0), ("", 0))
COPY_COLUMNS = grid.columns(("STATE", 0), ("FILE", 0), ("WHY", 0))
#: maximum number of diff lines that `lint` prints; `playbook.update NAME --check` shows all
MAX_DIFF_LINES = 60
SHIPPED_FILE_CHANGED_NOTE = "the shipped file has changed since"
UNCHANGED_COPY_NOTE = "unchanged since `init` copied it"


def list_files(*, json: bool) -> Exit:
    """Print the state of every playbook, part and template."""
    rows = ejection.list_states(Project.here().root)
    if json:
        for row in rows:
            print_json_line(_file_json(row))
    else:
        grid.print_table(
            FILE_COLUMNS,
            [(row.state, row.version, row.name, SHIPPED_FILE_CHANGED_NOTE if row.is_outdated else "") for row in rows],
        )
    return Exit.OK


def eject(file: str, *, json: bool) -> Exit:
    """Copy one shipped file into the project."""
    root = Project.here().root
    row = ejection.eject(root, ejection.resolve_name(file))
    if json:
        print_json_line(_file_json(row))
    else:
        print_prose(
            f"{row.name}: copied from sparkwright {row.version}. This project's commands use the copy from now on."
        )
        print_text(f"{shipped_files.ORIGINALS_FOLDER}/ keeps the original: commit both.")
    return Exit.OK


def update(file: str, *, mine: bool, check: bool, json: bool) -> Exit:
    """Merge sparkwright's later changes to a shipped file into the project's copy.

    Args:
        mine: keep the text of the copy, and record that it is based on the current shipped file.

    Raises:
        Refused: the project and sparkwright changed the same lines, and `mine` is not set; or the copy has conflict markers.
    """
    root = Project.here().root
    ejection.refuse_source_checkout(root)
    name = ejection.resolve_name(file)
    comparison = ejection.compare(root, name)
    if conflict_line := document.find_conflict(document.read_text(root / name)):
        raise Refused(document.CONFLICT, where=f"{name}:{conflict_line}", fix=document.CONFLICT_FIX)
    has_shipped_changes = comparison.original != comparison.shipped
    if not json and not has_shipped_changes:
        print_text(f"{name} is already based on the shipped file.")
    if not json and has_shipped_changes:
        print_differences(comparison, max_lines=None)
    if has_shipped_changes and not check:
        if comparison.conflicts and not mine:
            raise Refused(
                f"the changes in {name} and in the shipped file affect the same lines.",
                where=_conflict_location(comparison),
                fix=_conflict_hint(name),
            )
        ejection.write_ejected(root, name, comparison.project_text if mine else comparison.merge())
    if json:
        print_json_line(_file_json(ejection.file_state(root, name)))
    elif has_shipped_changes and not check:
        outcome = "your file was kept" if mine else "the changes were merged"
        print_prose(f"{name}: {outcome}; it is now based on sparkwright {__version__}.")
    return Exit.CHANGES if has_shipped_changes and check else Exit.OK


def clean(*, check: bool, yes: bool, json: bool) -> Exit:
    """Show the unchanged copies that an earlier version's `init` made, ask for confirmation, and remove them."""
    root = Project.here().root
    ejection.refuse_source_checkout(root)
    copies = list(ejection.find_unchanged_copies(root))
    removable_names = [name for name, keep_reason in copies if not keep_reason]
    if not json:
        _print_copies(root, copies)
    removed = (
        bool(removable_names)
        and not check
        and confirm(f"Remove {format_count(len(removable_names), 'file')}?", yes=yes)
    )
    if removed:
        _remove_files(root, removable_names)
    for name, keep_reason in copies if json else ():
        print_json_line({"file": name, "kept": keep_reason, "removed": removed and not keep_reason})
    if removed and not json:
        hint = f"`{program.name()} plan --host all` shows the effect"
        print_prose(
            f"{format_count(len(removable_names), 'file')} removed: commands now use the shipped files. {hint}."
        )
    return Exit.CHANGES if removable_names and not removed else Exit.OK


def _print_copies(root: Path, copies: Sequence[tuple[str, str]]) -> None:
    rows = [
        (
            "keep" if keep_reason else "remove",
            name,
            keep_reason
            or (UNCHANGED_COPY_NOTE if _is_shipped(name) else f"{UNCHANGED_COPY_NOTE}; not shipped with this version"),
        )
        for name, keep_reason in copies
    ]
    grid.print_table(COPY_COLUMNS, rows)
    for row in ejection.list_states(root):
        if row.state == "changed" and not row.version:
            print_text(f"keep    {row.name}  changed in this project")
    removable_count = sum(not keep_reason for _, keep_reason in copies)
    print_text(f"{format_count(removable_count, 'file')} to remove." if removable_count else "No copies to remove.")


def _remove_files(root: Path, names: Sequence[str]) -> None:
    for name in names:
        try:
            (root / name).unlink(missing_ok=True)
        except OSError as error:
            fix = "Make its folder writable, and repeat the command."
            raise Failed(f"{name} can't be removed: {error.strerror}.", fix=fix) from None
    folders = {parent for name in names for parent in (root / name).parents if parent.is_relative_to(root)} - {root}
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        if folder != root / "playbooks" or (root / "recipes").is_dir():  # a project needs this folder or recipes/
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def list_outdated_files(root: Path) -> list[dict[str, Any]]:
    """Return the ejected files whose originals have changed in sparkwright, for `lint --json`.

    Each row has two diffs against the original: of the shipped file, and of the project's file.
    """
    rows = []
    for row in ejection.list_states(root):
        if row.is_outdated:
            comparison = ejection.compare(root, row.name) if _is_shipped(row.name) else None
            rows.append({**_file_json(row), **_differences(comparison)})
    return rows


def _differences(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {"shipped_changes": [], "own_changes": [], "conflicts": []}
    spans = [{"start": change.start + 1, "end": max(change.end, change.start + 1)} for change in comparison.conflicts]
    return {
        "shipped_changes": comparison.diff(of_project=False),
        "own_changes": comparison.diff(of_project=True),
        "conflicts": spans,
    }


def print_outdated_files(root: Path) -> None:
    """Print the ejected files whose originals have changed in sparkwright, and how many unchanged copies hide shipped ones."""
    if root.resolve() == shipped_files.shipped_folder().resolve():
        return
    rows = ejection.list_states(root)
    for row in rows:
        if row.is_outdated and _is_shipped(row.name):
            comparison = ejection.compare(root, row.name)
            print_prose(
                f"{row.name}: {SHIPPED_FILE_CHANGED_NOTE} sparkwright {row.version}, from which it was ejected."
            )
            print_differences(comparison, max_lines=MAX_DIFF_LINES)
            print_prose(f"  {_conflict_hint(row.name) if comparison.conflicts else _merge_hint(row.name)}")
        elif row.is_outdated:
            print_prose(f"{row.name}: ejected from an earlier sparkwright; this version neither ships nor uses it.")
    unchanged_copies = [row for row in rows if row.state == "copied"]
    if unchanged_copies:
        hint = f"`{program.name()} playbook.clean --check` lists them"
        print_prose(
            f"An earlier `init` left unchanged copies in this project ({format_count(len(unchanged_copies), 'file')}), "
            f"which are used instead of this version's playbooks and templates: {hint}."
        )


def print_differences(comparison: Comparison, *, max_lines: int | None) -> None:
    """Print two diffs against the original: of the shipped file, and of the project's file."""
    for is_own in (False, True):
        lines = comparison.diff(of_project=is_own)
        if not lines:
            print_text(f"  your file is unchanged since it was ejected from {comparison.version}.")
        for line in lines[:max_lines]:
            print_text(f"  {line}")
        if max_lines is not None and len(lines) > max_lines:
            hint = f"`{program.name()} playbook.update {shipped_files.short_name(comparison.name)} --check` shows all"
            print_text(f"  … {format_count(len(lines) - max_lines, 'more line')}: {hint}.")


def _is_shipped(name: str) -> bool:
    return (shipped_files.shipped_folder() / name).is_file()


def _conflict_location(comparison: Comparison) -> str:
    """Return "file:line" of the first conflict, in the project's file."""
    own_lines = comparison.project_text.splitlines()
    first_conflict = comparison.conflicts[0]
    line = (first_conflict.lines or ("",))[0].rstrip("\n")
    line_number = own_lines.index(line) + 1 if line in own_lines else first_conflict.start + 1
    return f"{comparison.name}:{line_number + (1 if comparison.name.endswith('.yml') else 0)}"


def _merge_hint(name: str) -> str:
    command = f"{program.name()} playbook.update {shipped_files.short_name(name)}"
    return f"`{command}` merges the changes to the shipped file into yours."


def _conflict_hint(name: str) -> str:
    command = f"{program.name()} playbook.update {shipped_files.short_name(name)}"
    return f"Your changes and those in sparkwright affect the same lines: edit your file, then run `{command} --mine`."


def _file_json(row: FileState) -> dict[str, Any]:
    return {"file": row.name, "state": row.state, "version": row.version, "moved": row.is_outdated}

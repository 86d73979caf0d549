"""The files that sparkwright ships: playbooks, their parts, templates and schemas. A project's file of the same name wins.

A file's name is its path from the project's folder, such as `playbooks/parts/swap.yml`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from sparkwright.trust import private

#: folders in which a project has only the files that it changes or adds
SHIPPED_FOLDERS = ("playbooks", "templates", "schemas")
#: folders whose files can be copied into a project
EJECTABLE_FOLDERS = ("playbooks", "templates")


def shipped_folder() -> Path:
    """Return the folder of all shipped files: inside the installed package, or the top of the checkout it runs from."""
    package = Path(__file__).parents[1]
    installed = package / "starter"
    return installed if installed.is_dir() else package.parent.parent


def find_file(project: Path, name: str) -> Path | None:
    """Return the project's file of this name, else the shipped one; None if there is neither."""
    return next((top / name for top in (project, shipped_folder()) if os.path.isfile(top / name)), None)  # noqa: PTH113


def resolve_path(project: Path, name: str) -> Path:
    """Return the path of `find_file`, or the path that the project's file would have."""
    return find_file(project, name) or project / name


def resolve_relative(project: Path, path: Path, relative: str) -> Path:
    """Return the path of a file that another one names relative to its own folder.

    Args:
        path: the file that names it: the project's, a shipped one, or one elsewhere, which sees the files beside it only.
    """
    own_path = path.parent / relative
    for top in (project, shipped_folder()):
        name = os.path.relpath(os.path.abspath(own_path), os.path.abspath(top))  # noqa: PTH100
        if name.split("/", 1)[0] in SHIPPED_FOLDERS and (found := find_file(project, name)):
            return found
    return own_path


def list_names(project: Path, pattern: str) -> list[str]:
    """Return the names of the project's and the shipped files that match a pattern, such as `playbooks/**/*.yml`."""
    paths = (
        path.relative_to(top) for top in (project, shipped_folder()) for path in top.glob(pattern) if path.is_file()
    )
    return sorted({path.as_posix() for path in paths})


def list_paths(project: Path, pattern: str) -> Iterator[Path]:
    """Yield the file of each name that matches a pattern."""
    return (resolve_path(project, name) for name in list_names(project, pattern))


def shipped_name(path: Path) -> str:
    """Return the name of a shipped file by its path; empty for any other file."""
    try:
        name = path.relative_to(shipped_folder()).as_posix()
    except ValueError:
        return ""
    return name if name.split("/", 1)[0] in SHIPPED_FOLDERS else ""


def short_name(name: str) -> str:
    """Return the shortest word that `playbook.eject` takes for a file."""
    folder, _, below = name.partition("/")
    return below.removesuffix(".yml") if folder == "playbooks" else below


def list_ejectable() -> list[str]:
    """Return the names of all files that can be ejected."""
    top = shipped_folder()
    paths = (
        path
        for folder in EJECTABLE_FOLDERS
        for path in (top / folder).rglob("*")
        if path.is_file() and path.name[0] != "."
    )
    return sorted(path.relative_to(top).as_posix() for path in paths)


#: in a project; the files are copies for editors, and git ignores the folder
SCHEMA_FOLDER = ".sparkwright/schemas"
#: in the checkout
SHIPPED_SCHEMA_FOLDER = "schemas"
SCHEMA_MARK = "# yaml-language-server: $schema="
_SHIPPED_LINE = re.compile(rf"\A{re.escape(SCHEMA_MARK)}((?:\.\./){{1,9}}){SHIPPED_SCHEMA_FOLDER}/")


def schema_line(kind: str, *, depth: int = 1) -> str:
    """Return the first line of a file, which names its schema for editors, with its newline.

    Args:
        kind: the file's kind, as `schema` calls it.
        depth: number of folders between the file and the project's folder.
    """
    return f"{SCHEMA_MARK}{'../' * depth}{SCHEMA_FOLDER}/{kind}.json\n"


def to_project_text(text: str) -> str:
    """Return the text of a shipped file as a project has it: its first line names the project's copy of the schema."""
    return _SHIPPED_LINE.sub(rf"{SCHEMA_MARK}\1{SCHEMA_FOLDER}/", text)


def refresh_schemas(project: Path) -> None:
    """Copy the schemas that differ from the shipped ones. Without them editors know no keys, and commands do as well."""
    with contextlib.suppress(OSError):
        ignored = private.create_folder(project / SCHEMA_FOLDER).parent / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")
    for shipped in (shipped_folder() / SHIPPED_SCHEMA_FOLDER).glob("*.json"):
        copy = project / SCHEMA_FOLDER / shipped.name
        with contextlib.suppress(OSError):
            text = shipped.read_bytes()
            if not copy.is_file() or copy.read_bytes() != text:
                copy.write_bytes(text)

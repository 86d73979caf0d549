"""The files shipped with sparkwright: playbooks, their parts, templates and schemas. A project's file overrides the shipped one.

A file's name is its path relative to the project's folder, such as `playbooks/parts/swap.yml`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from sparkwright.trust import private

#: folders with shipped files, which a project can override or add to
SHIPPED_FOLDERS = ("playbooks", "templates", "schemas")
#: folders whose files can be copied into a project
EJECTABLE_FOLDERS = ("playbooks", "templates")
#: folder in a project with copies of the schemas for editors; ignored by git
SCHEMA_FOLDER = ".sparkwright/schemas"
#: folder with the originals of ejected files, in a project
ORIGINALS_FOLDER = ".ejected"
#: folder of the schemas among the shipped files
SHIPPED_SCHEMA_FOLDER = "schemas"
SCHEMA_LINE_PREFIX = "# yaml-language-server: $schema="
_SHIPPED_SCHEMA_LINE_PATTERN = re.compile(
    rf"\A{re.escape(SCHEMA_LINE_PREFIX)}((?:\.\./){{1,9}}){SHIPPED_SCHEMA_FOLDER}/"
)


def shipped_folder() -> Path:
    """Return the folder of the shipped files: `starter` in the installed package, or the root of a checkout."""
    package_folder = Path(__file__).parents[1]
    installed_folder = package_folder / "starter"
    return installed_folder if installed_folder.is_dir() else package_folder.parent.parent


def find_file(project: Path, name: str) -> Path | None:
    """Return the project's file of this name, or else the shipped one; None if neither exists.

    Anything else in the project with this name, such as a broken link, is returned too: reading it fails, instead of the shipped
    file being used in its place.
    """
    if os.path.lexists(project / name):
        return project / name
    return shipped_folder() / name if os.path.isfile(shipped_folder() / name) else None  # noqa: PTH113


def resolve_path(project: Path, name: str) -> Path:
    """Return the result of `find_file`, or the path in the project if there is no such file."""
    return find_file(project, name) or project / name


def resolve_relative(project: Path, path: Path, relative: str) -> Path:
    """Return the path of a file that another file includes.

    Args:
        path: the including file. A file outside the project and the package can include only files relative to itself.
        relative: the included file, relative to the folder of the including one.
    """
    included = path.parent / relative
    for top in (project, shipped_folder()):
        name = os.path.relpath(os.path.abspath(included), os.path.abspath(top))  # noqa: PTH100
        if name.split("/", 1)[0] in SHIPPED_FOLDERS and (overriding_file := find_file(project, name)):
            return overriding_file
    return included


def list_names(project: Path, pattern: str) -> list[str]:
    """Return the names of project and shipped files that match a glob pattern, such as `playbooks/**/*.yml`."""
    paths = (
        path.relative_to(top) for top in (project, shipped_folder()) for path in top.glob(pattern) if path.is_file()
    )
    return sorted({path.as_posix() for path in paths})


def list_paths(project: Path, pattern: str) -> Iterator[Path]:
    """Return the effective path of each file in `list_names`."""
    return (resolve_path(project, name) for name in list_names(project, pattern))


def shipped_name(path: Path) -> str:
    """Return the name of a shipped file, given its path; empty for any other file."""
    try:
        name = path.relative_to(shipped_folder()).as_posix()
    except ValueError:
        return ""
    return name if name.split("/", 1)[0] in SHIPPED_FOLDERS else ""


def short_name(name: str) -> str:
    """Return the shortest name for a file that `playbook.eject` accepts."""
    folder, _, subpath = name.partition("/")
    return subpath.removesuffix(".yml") if folder == "playbooks" else subpath


def list_ejectable() -> list[str]:
    top = shipped_folder()
    paths = (
        path
        for folder in EJECTABLE_FOLDERS
        for path in (top / folder).rglob("*")
        if path.is_file() and path.name[0] != "."
    )
    return sorted(path.relative_to(top).as_posix() for path in paths)


def schema_line(kind: str, *, depth: int = 1) -> str:
    """Return the first line of a project's file, a comment that tells editors its schema.

    Args:
        kind: name of the schema, such as "recipe".
        depth: number of folders between the file and the project's folder.
    """
    return f"{SCHEMA_LINE_PREFIX}{'../' * depth}{SCHEMA_FOLDER}/{kind}.json\n"


def to_project_text(text: str) -> str:
    """Return the text of a shipped file with the schema path of a project in its first line."""
    return _SHIPPED_SCHEMA_LINE_PATTERN.sub(rf"{SCHEMA_LINE_PREFIX}\1{SCHEMA_FOLDER}/", text)


def refresh_schemas(project: Path) -> None:
    """Update a project's copies of the schemas. Errors are ignored, because only editors use them."""
    with contextlib.suppress(OSError):
        gitignore = private.create_folder(project / SCHEMA_FOLDER).parent / ".gitignore"
        if not gitignore.exists():
            gitignore.write_text("*\n")
    for shipped_path in (shipped_folder() / SHIPPED_SCHEMA_FOLDER).glob("*.json"):
        copy_path = project / SCHEMA_FOLDER / shipped_path.name
        with contextlib.suppress(OSError):
            content = shipped_path.read_bytes()
            if not copy_path.is_file() or copy_path.read_bytes() != content:
                copy_path.write_bytes(content)

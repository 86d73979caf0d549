"""The first line of every YAML file of a project, which tells editors its schema, offline."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from sparkwright.project import shipped_files
from sparkwright.trust import private

#: in a project; the files are copies for editors, and git ignores the folder
FOLDER = ".sparkwright/schemas"
#: in the checkout
SHIPPED = "schemas"
MARK = "# yaml-language-server: $schema="
_SHIPPED_LINE = re.compile(rf"\A{re.escape(MARK)}((?:\.\./){{1,9}}){SHIPPED}/")


def line(kind: str, *, depth: int = 1) -> str:
    """Return the line, with its newline.

    Args:
        kind: the file's kind, as `schema` calls it.
        depth: number of folders between the file and the project's folder.
    """
    return f"{MARK}{'../' * depth}{FOLDER}/{kind}.json\n"


def in_project(text: str) -> str:
    """Return the text of a shipped file as a project has it: its first line names the project's copy of the schema."""
    return _SHIPPED_LINE.sub(rf"{MARK}\1{FOLDER}/", text)


def refresh(project: Path) -> None:
    """Copy the schemas that differ from the shipped ones. Without them editors know no keys, and commands do as well."""
    with contextlib.suppress(OSError):
        ignored = private.folder(project / FOLDER).parent / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")
    for shipped in (shipped_files.source() / SHIPPED).glob("*.json"):
        copy = project / FOLDER / shipped.name
        with contextlib.suppress(OSError):
            text = shipped.read_bytes()
            if not copy.is_file() or copy.read_bytes() != text:
                copy.write_bytes(text)

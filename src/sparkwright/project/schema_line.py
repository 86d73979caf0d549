"""The first line of every YAML file of a project, which tells editors its schema, offline."""

from __future__ import annotations

FOLDER = "schemas"
MARK = "# yaml-language-server: $schema="


def line(kind: str, *, depth: int = 1) -> str:
    """Return the line, with its newline.

    Args:
        kind: the file's kind, as `schema` calls it.
        depth: number of folders between the file and the project's folder.
    """
    return f"{MARK}{'../' * depth}{FOLDER}/{kind}.json\n"

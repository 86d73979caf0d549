"""The first line of every YAML file of a project: where editors find its schema, offline."""

from __future__ import annotations

FOLDER = "schemas"
MARK = "# yaml-language-server: $schema="


def line(kind: str, *, depth: int = 1) -> str:
    """The line, with its newline. kind: of the file, as `schema` calls it. depth: how many folders it is below the project's."""
    return f"{MARK}{'../' * depth}{FOLDER}/{kind}.json\n"

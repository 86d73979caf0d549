"""Files that a recipe puts into its container: rendered here and named by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.playbook.blame import Blame
from sparkwright.project.recipe.recipe import Recipe
from sparkwright.protocol import expressions
from sparkwright.trust.file_words import FOLDER
from sparkwright.trust.secret_names import token_line

#: limit for one file
MOST_BYTES = 1 << 20
SECRET = "A secret belongs under `secrets:` of the host, or in `server_key`; anyone on the host can read this file."


def contents(recipe: Recipe, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the recipe's files, by their paths in the container. names: for templates.

    Raises Refused with file and line for one that is missing, too large, no text, cannot be rendered, or holds a secret.
    """
    return {path: _content(recipe, path, names) for path in recipe.file.files}


def digest(content: str) -> str:
    """Return the digest that names a file's content."""
    return hashlib.sha256(content.encode()).hexdigest()


def mount_options(digests: Mapping[str, str], home: str) -> Iterator[tuple[str, str]]:
    """Yield the options of `docker run` that mount the files, as a deploy leaves them below the home folder of the
    host's user."""
    for path, named in sorted(digests.items()):
        yield "--mount", f"type=bind,source={home}/.local/state/sparkwright/{FOLDER}/{named},target={path},readonly"


def _content(recipe: Recipe, path: str, names: Mapping[str, Any]) -> str:
    source, where = recipe.file.files[path], recipe.source.where("files", path)
    root = recipe.source.path.parents[recipe.name.count("/") + 1]
    found = shipped_files.path_of(root, f"templates/{source.template}") if source.template else root / source.file
    try:
        inside = any(
            found.resolve().is_relative_to(top.resolve()) for top in (root, shipped_files.source() / "templates")
        )
        there = found.is_file()
    except (OSError, ValueError):  # a name that no file can have
        inside, there = True, False
    if not inside:
        raise Refused(
            f"`files.{path}` names a file outside of the project.", where=where, fix="Copy it into the project."
        )
    if not there:
        name = visible.name(f"templates/{source.template}" if source.template else source.file)
        raise Refused(f"`files.{path}`: there is no {name}.", where=where, fix="Create it, or correct the name.")
    text = document.text_of(found, most_bytes=MOST_BYTES)
    if source.template:
        text = _rendered(found, text, names)
    if len(text.encode()) > MOST_BYTES:
        raise Refused(f"`files.{path}` renders to more than {MOST_BYTES >> 20} MiB.", where=where, fix="Shorten it.")
    for line in _secrets(text):
        at = f"{document.shown(found)}:{line}" if not source.template else document.shown(found)
        raise Refused(f"`files.{path}` holds what looks like a secret.", where=at, fix=SECRET)
    return text


def _rendered(path: Path, text: str, names: Mapping[str, Any]) -> str:
    try:
        return str(expressions.render(text, names))
    except expressions.ExpressionError as error:
        raise Refused(f"{error}.", where=Blame.text(path)(error.line)) from None


def _secrets(text: str) -> Iterator[int]:
    """Return the numbers of the lines that hold a secret, from 1."""
    return (n for n, line in enumerate(text.splitlines(), 1) if token_line(line))

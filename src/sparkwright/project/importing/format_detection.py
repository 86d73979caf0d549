"""Detection of a text's format, and its reader."""

from __future__ import annotations

import re
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing import compose_file, docker_command, foreign_recipe, sparkrun, vllm_recipes
from sparkwright.project.importing.foreign_recipe import ForeignRecipe, ImportReport
from sparkwright.trust.shapes import ShapeError

FORMATS = (
    "a recipe of vllm-project/recipes, of sparkrun (version 2 or 1) or of eugr, a compose file, or a docker run line"
)


#: other kinds of files that start a server, by their ending
KINDS_BY_SUFFIX = {
    **dict.fromkeys((".service", ".container", ".timer"), "a systemd unit"),
    **dict.fromkeys((".sh", ".bash"), "a shell script"),
    **dict.fromkeys((".md", ".rst", ".txt"), "a text for people"),
    ".dockerfile": "a Dockerfile",
    ".env": "a file of variables",
    ".py": "a Python program",
}
#: the same by the first line
KINDS_BY_SHEBANG = (
    (re.compile(r"#!.{0,80}\b(?:ba|z|da)?sh\b"), "a shell script"),
    (re.compile(r"#!.{0,80}\bpython"), "a Python program"),
)
#: the same by the first line that is not a comment
KINDS_BY_FIRST_LINE = (
    (re.compile(r"\[(?:Unit|Service|Install|Container)\]"), "a systemd unit"),
    (re.compile(r"set -[a-z]|export [A-Z_]{1,60}="), "a shell script"),
    (re.compile(r"(?:ARG|FROM) \S"), "a Dockerfile"),
    (re.compile(r"[A-Z][A-Z0-9_]{1,60}=\S"), "a file of variables"),
)
MAX_SEARCHED_CHARS, MAX_SEARCHED_LINES = 20_000, 40


def _find_other_kind(text: str, path: Path) -> str:
    """Return the kind of a file that is none of the formats, where it is a usual one; "" for any other."""
    if kind := KINDS_BY_SUFFIX.get(path.suffix.lower(), "a Dockerfile" if path.name == "Dockerfile" else ""):
        return kind
    lines = [stripped[:200] for line in text[:MAX_SEARCHED_CHARS].splitlines() if (stripped := line.strip())]
    first = lines[0] if lines else ""
    code = next((line for line in lines if not line.startswith(("#", ";"))), "")
    has_fence = any(line.startswith("```") for line in lines[:MAX_SEARCHED_LINES])
    if first.startswith("```") or (first.startswith("# ") and has_fence):
        return "a text for people"
    kinds = (
        kind
        for rows, line in ((KINDS_BY_SHEBANG, first), (KINDS_BY_FIRST_LINE, code))
        for row, kind in rows
        if row.match(line)
    )
    return next(kinds, "")


def parse(text: str, path: Path, report: ImportReport) -> ForeignRecipe:
    """Read a text in any of the known formats.

    Args:
        path: the text's file, for messages and for files beside it.

    Raises Refused if it has none of the formats, and as their readers do.
    """
    if docker_command.matches(text):
        return docker_command.parse(text, report)
    if kind := _find_other_kind(text, path):
        fix = f"It must be {FORMATS}: `recipe.import 'docker run ...'` takes a line as it stands there."
        raise Refused(f"this is {kind}, which is not read.", where=document.format_path(path), fix=fix)
    parsed = document.parse(text, path)
    where = document.format_path(path)
    if not isinstance(parsed.data, dict):
        raise Refused(f"this is not {FORMATS}.", where=where)
    try:
        data = foreign_recipe.resolve_merges(parsed.data)
    except ShapeError as misfit:
        raise Refused(f"it {misfit.reason}.", where=where) from None
    try:
        if vllm_recipes.matches(data):
            foreign_recipe.check_shape(parsed, data, vllm_recipes.SHAPE)
            return vllm_recipes.convert(data, report)
        if compose_file.matches(data):
            foreign_recipe.check_shape(parsed, data, compose_file.SHAPE)
            return compose_file.convert(data, report)
        if sparkrun.matches(data):
            foreign_recipe.check_shape(parsed, data, sparkrun.SHAPE)
            return sparkrun.convert(data, path, report)
    except Refused as error:
        raise error if error.where else Refused(error.message, where=where, fix=error.fix) from None
    if "image" in data and "container" in data:
        raise Refused("this is a recipe of sparkwright already.", where=where, fix="Copy it to recipes/.")
    raise Refused(f"this is not {FORMATS}.", where=where, fix="Formats: docs/recipes-in.md.")

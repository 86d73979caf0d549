"""Detects the format of a recipe, and reads it."""

from __future__ import annotations

import re
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing import compose_file, docker_command, foreign_recipe, sparkrun, vllm_recipes
from sparkwright.project.importing.foreign_recipe import ForeignRecipe, ImportReport
from sparkwright.trust.shapes import ShapeError

SUPPORTED_FORMATS_TEXT = (
    "a recipe of vllm-project/recipes, of sparkrun (version 2 or 1) or of eugr, a compose file, or a docker run line"
)


#: kinds of files that cannot be imported, by suffix
KINDS_BY_SUFFIX = {
    **dict.fromkeys((".service", ".container", ".timer"), "a systemd unit"),
    **dict.fromkeys((".sh", ".bash"), "a shell script"),
    **dict.fromkeys((".md", ".rst", ".txt"), "a text document"),
    ".dockerfile": "a Dockerfile",
    ".env": "a file of environment variables",
    ".py": "a Python program",
}
#: kinds of files that cannot be imported, by the first line
KINDS_BY_SHEBANG = (
    (re.compile(r"#!.{0,80}\b(?:ba|z|da)?sh\b"), "a shell script"),
    (re.compile(r"#!.{0,80}\bpython"), "a Python program"),
)
#: kinds of files that cannot be imported, by the first line that is not a comment
KINDS_BY_FIRST_LINE = (
    (re.compile(r"\[(?:Unit|Service|Install|Container)\]"), "a systemd unit"),
    (re.compile(r"set -[a-z]|export [A-Z_]{1,60}="), "a shell script"),
    (re.compile(r"(?:ARG|FROM) \S"), "a Dockerfile"),
    (re.compile(r"[A-Z][A-Z0-9_]{1,60}=\S"), "a file of environment variables"),
)
MAX_SEARCHED_CHARS, MAX_SEARCHED_LINES = 20_000, 40


def _find_unsupported_kind(text: str, path: Path) -> str:
    """Return the kind of a file that cannot be imported, for a message; empty if it is not one of the usual ones."""
    if kind := KINDS_BY_SUFFIX.get(path.suffix.lower(), "a Dockerfile" if path.name == "Dockerfile" else ""):
        return kind
    lines = [stripped[:200] for line in text[:MAX_SEARCHED_CHARS].splitlines() if (stripped := line.strip())]
    first_line = lines[0] if lines else ""
    first_code_line = next((line for line in lines if not line.startswith(("#", ";"))), "")
    has_fence = any(line.startswith("```") for line in lines[:MAX_SEARCHED_LINES])
    if first_line.startswith("```") or (first_line.startswith("# ") and has_fence):
        return "a text document"
    for patterns, line in ((KINDS_BY_SHEBANG, first_line), (KINDS_BY_FIRST_LINE, first_code_line)):
        for pattern, kind in patterns:
            if pattern.match(line):
                return kind
    return ""


def parse(text: str, path: Path, report: ImportReport) -> ForeignRecipe:
    """Read a recipe in any supported format. Raises Refused if the format is unknown or the recipe is invalid.

    path: for messages, and to find other files next to it.
    """
    if docker_command.matches(text):
        return docker_command.parse(text, report)
    if kind := _find_unsupported_kind(text, path):
        fix = f"It must be {SUPPORTED_FORMATS_TEXT}. For a docker run line in it: `recipe.import 'docker run ...'`."
        raise Refused(f"this is {kind}, which cannot be imported.", where=document.format_path(path), fix=fix)
    parsed = document.parse(text, path)
    where = document.format_path(path)
    if not isinstance(parsed.data, dict):
        raise Refused(f"this is not {SUPPORTED_FORMATS_TEXT}.", where=where)
    try:
        data = foreign_recipe.resolve_merges(parsed.data)
    except ShapeError as error:
        raise Refused(f"the file {error.reason}.", where=where) from None
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
        raise Refused("this is already a sparkwright recipe.", where=where, fix="Copy it to recipes/.")
    raise Refused(f"this is not {SUPPORTED_FORMATS_TEXT}.", where=where, fix="Formats: docs/recipes-in.md.")
